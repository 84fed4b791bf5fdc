package queues

import "net"

// Attachment is one way for guests to reach the NIC. Accept may be called by
// one goroutine at a time; Close by any.
type Attachment interface {
	// Accept waits for the next guest and returns its session. After Close it
	// returns net.ErrClosed.
	Accept() (Session, error)
	// Addr names the attachment in messages and logs.
	Addr() string
	// Close stops accepting. Sessions already accepted live on.
	Close() error
}

// Session is the control stream of one attached guest, and its memory.
type Session interface {
	net.Conn
	// Peer says who is at the other end, as the transport vouches for it.
	Peer() Peer
	// Watch calls f at once with the guest's current memory, and again before
	// each change takes effect: when f returns, mappings that the new list
	// does not hold may be unmapped. The guest may wait meanwhile: f must be
	// quick. The slice and its mappings belong to the session; f must not keep
	// the slice. Calls of f do not overlap. The caller lets go of all mappings
	// before it calls stop, which starts no new call of f and does not wait
	// for one that has begun.
	Watch(f func([]Region)) (stop func())
}

// Peer identifies a guest.
type Peer struct {
	Transport string // "vhost-user", "vsock" or "unix"
	CID       uint32 // vsock context id; 0 on "unix"
	PID, UID  int    // of the process on "unix"; else 0
}

// Region ties a range of device addresses to a mapping of the host. Addr+len(Mem)
// does not pass 2^64 and regions of one list do not overlap.
type Region struct {
	Addr uint64
	Mem  []byte
}

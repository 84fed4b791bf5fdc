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

// Ringer is a Session whose guest can ring without a message: doorbell records
// come by shared memory.
type Ringer interface {
	// Bells calls f with whole doorbell records of one of the guest's functions
	// until stop, which waits for a call that has begun. f must not keep the
	// records. An error given to f says that the guest broke the rules and that
	// nothing more comes. Records of earlier users are not seen. stop is nil if the
	// function has no such way. Only one user of a function's bells at a time.
	Bells(function uint32, f func(records []byte, err error)) (stop func(), err error)
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

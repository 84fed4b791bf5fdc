package queues

import (
	"net"

	"github.com/falcon-vnic/vnic/queues/ring"
)

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
	// quick. The mappings belong to the session. Calls of f do not overlap. The
	// caller lets go of all mappings before it calls stop, which starts no new
	// call of f and does not wait for one that has begun.
	Watch(f func(Regions)) (stop func())
}

// Ringer is a Session whose guest can ring without a message: doorbell records
// come by shared memory.
type Ringer interface {
	// Bell returns the bell of one of the guest's functions, nil if it has none.
	// Records of earlier users are gone. Only one user of a function's bell at a
	// time.
	Bell(function uint32) (Bell, error)
}

// Bound is a Session whose guest came by a function's own device: it can have no other function.
type Bound interface {
	Function() uint32
}

// Bell is a ring of doorbell records that the guest fills, and the descriptor
// that it makes readable when the ring asks for that. It belongs to one
// goroutine; after an error, which says that the guest broke the rules, nothing
// more comes of it.
type Bell interface {
	// FD is non-blocking. Reading 8 bytes from it makes it unreadable until the
	// guest rings again. It belongs to the Bell.
	FD() int
	// Take copies whole records into b and returns how many bytes. The guest may
	// use their slots again.
	Take(b []byte) (n int, err error)
	// Arm asks the guest to ring for the next record. It reports whether there are
	// records already: then there is no need to wait.
	Arm() (records bool, err error)
	// Close lets the next user have it.
	Close()
}

// Interrupter is a Bell whose guest takes events by shared memory and interrupts.
// It is used by the same goroutine.
type Interrupter interface {
	Bell
	// EventQueues are the areas of event queues, empty when the Bell is opened.
	EventQueues() []ring.Bytes
	// Interrupt raises the interrupt of the i-th event queue. It does not block.
	Interrupt(i int)
}

// AdminHolder is a Bell whose guest may have its admin queues in shared memory too.
type AdminHolder interface {
	Bell
	// AdminQueues are the areas of the admin queues, with room for abi.MaxAdminEntries,
	// zero when the Bell is opened.
	AdminQueues() (sq, cq ring.Bytes)
}

// Peer identifies a guest.
type Peer struct {
	Transport string // "vhost-user", "vfio-user", "vsock" or "unix"
	CID       uint32 // vsock context id, or the guest's number on "vfio-user"; 0 on "unix"
	PID, UID  int    // of the process on "unix"; else 0
}

// Region ties a range of device addresses to a mapping of the host. Addr+len(Mem)
// does not pass 2^64. Where the mapping goes on behind Mem, so may its slice: then
// regions that follow each other in memory can be joined (Regions.With).
type Region struct {
	Addr uint64
	Mem  []byte
}

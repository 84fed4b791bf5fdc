package queues

import (
	"net"

	"github.com/falcon-vnic/vnic/queues/ring"
)

// Attachment is one way for guests to reach the NIC. One goroutine at a time may call Accept; any
// may call Close.
type Attachment interface {
	// Accept waits for the next guest and returns its session. After Close it returns
	// net.ErrClosed.
	Accept() (Session, error)
	// Addr names the attachment in messages and logs.
	Addr() string
	// Close stops accepting. It does not end the sessions already accepted.
	Close() error
}

// Session is the control stream of one attached guest, with the guest's memory.
type Session interface {
	net.Conn
	// Identity returns who is at the other end, as the transport guarantees it.
	Identity() Identity
	// Watch calls f at once with the guest's current memory, and again before each change takes
	// effect. When f returns, mappings that the new list does not contain may be unmapped. f must
	// be quick, because the guest may wait for it. The mappings belong to the session. Calls of f
	// do not overlap. The caller must stop using all mappings before it calls stop. stop prevents
	// further calls of f but does not wait for one in progress.
	Watch(f func(Regions)) (stop func())
}

// Ringer is a Session whose guest can ring doorbells without a message, by records in shared
// memory.
type Ringer interface {
	// Bell returns the bell of one of the guest's functions, nil if it has none. Records of earlier
	// users are discarded. A function's bell may have only one user at a time.
	Bell(function uint32) (Bell, error)
}

// Bound is a Session whose guest attached through a function's own device, so it can have no other
// function.
type Bound interface {
	Function() uint32
}

// Bell is a ring of doorbell records that the guest fills, with a descriptor that the guest makes
// readable when the ring asks for it. It belongs to one goroutine. An error means that the guest
// broke the rules; the Bell yields nothing more after it.
type Bell interface {
	// FD returns a non-blocking descriptor that belongs to the Bell. Reading 8 bytes from it makes
	// it unreadable until the guest rings again.
	FD() int
	// Take copies whole records into b and returns the number of bytes. The guest may use their
	// slots again.
	Take(b []byte) (n int, err error)
	// Arm asks the guest to ring for the next record. It reports whether there are records already;
	// then there is no need to wait.
	Arm() (records bool, err error)
	// Close releases the bell for the next user.
	Close()
}

// Interrupter is a Bell whose guest receives events by shared memory and interrupts. The same
// goroutine uses it.
type Interrupter interface {
	Bell
	// EventQueues returns the areas of the event queues, which are empty when the Bell is opened.
	EventQueues() []ring.Bytes
	// Interrupt raises the interrupt of the i-th event queue. It does not block.
	Interrupt(i int)
}

// AdminHolder is a Bell whose guest may also have its admin queues in shared memory.
type AdminHolder interface {
	Bell
	// AdminQueues returns the areas of the admin queues, with room for abi.MaxAdminEntries. They
	// are zero when the Bell is opened.
	AdminQueues() (sq, cq ring.Bytes)
}

// InProcess is the transport of drivers that run in the NIC's own process.
const InProcess = "in-process"

// Identity says which guest is at the other end.
type Identity struct {
	Transport string // "vhost-user", "vfio-user", "vsock", "unix" or InProcess
	CID       uint32 // vsock context id, or the guest's number on "vfio-user"; 0 on "unix" and InProcess
	PID, UID  int    // of the process on "unix" and InProcess; else 0
}

// Region maps a range of device addresses to memory of the host. Addr+len(Mem) is at most 2^64. If
// the host mapping continues behind Mem, the capacity of Mem may include that part; then regions
// that follow each other in memory can be joined (Regions.With).
type Region struct {
	Addr uint64
	Mem  []byte
}

package tap

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Port is an Ethernet port: a TAP device or a port of an in-memory segment. No call blocks. A port
// has one owner at a time: Read, Write and Close must not run concurrently with each other.
type Port interface {
	// Name returns the interface name, for people.
	Name() string
	// FD returns a descriptor that is readable (poll's POLLIN) while frames wait. The port keeps
	// ownership of it.
	FD() int
	// Read reads up to len(bufs) waiting Ethernet frames, one per buffer, and describes them in
	// got, which must be at least as long as bufs. It returns the number of frames, 0 and nil when
	// none waits. It may leave some for the next call. Buffers must hold BufferSize bytes; a longer
	// frame is dropped and counted.
	Read(bufs [][]byte, got []Received) (int, error)
	// Write sends frames and returns how many were taken: fewer than given, with a nil error, when
	// the port is full. Frames shorter than an Ethernet header or longer than MTU()+18 are dropped
	// and counted as taken. Adjacent frames may be sent together as a superframe, if the port
	// supports that. more means that the caller will soon write further frames: then the last
	// frames may be left until the next call if they could form a longer superframe with those.
	Write(frames [][]byte, more bool) (int, error)
	// MTU returns the largest Ethernet payload in bytes.
	MTU() int
	// Capabilities returns what the port supports beyond single frames.
	Capabilities() Capabilities
	// Stats returns the port's counters.
	Stats() Stats
	// Close releases the port. A device the port created disappears with it. Closing twice is an
	// error (net.ErrClosed).
	Close() error
}

// Received describes a frame that Read returned.
type Received struct {
	Len int // bytes
	// Segment is 0 unless the frame is a superframe: a UDP datagram in one IP packet, longer than
	// the MTU, that stands for several datagrams with equal headers. Each has Segment bytes of its
	// payload; the last may have fewer.
	Segment int
}

// Capabilities describes what a port supports beyond single frames.
type Capabilities struct {
	USO         bool // superframes are sent and received
	MaxSegments int  // maximum number of datagrams in one superframe; 1 without USO
	Queues      int  // queues of a TAP, 0 for another kind of port
}

// BufferSize returns the size of p.Read's buffers, bytes.
func BufferSize(p Port) int {
	if p.Capabilities().USO {
		return maxPacket + FrameOverhead
	}
	return p.MTU() + FrameOverhead
}

// Stats counts the frames that a port carried and dropped. Each datagram of a superframe counts as
// a frame, with its headers.
type Stats struct {
	RxFrames, RxBytes    uint64
	TxFrames, TxBytes    uint64
	RxDropped, TxDropped uint64 // malformed, too long, or no room

	RxSuperframes, TxSuperframes uint64
}

// FrameOverhead is the room that buffers need above the MTU for an Ethernet header and a VLAN tag,
// bytes.
const FrameOverhead = 18

// MinFrame is the shortest frame accepted: the Ethernet header, bytes.
const MinFrame = 14

// ErrDown is returned by Write while the interface is administratively down.
var ErrDown = errors.New("tap: interface is down")

// Backends of Open.
const (
	BackendNative = "native"
	BackendWater  = "water"
)

// Config describes the TAP to open.
type Config struct {
	Name    string // interface name, 1..15 bytes
	MTU     int    // bytes; 0 leaves the kernel's default (1500)
	Bridge  string // bridge to enslave the interface to; "" for none
	Backend string // BackendNative (also "") or BackendWater
	Adopt   bool   // use an existing persistent interface instead of making one
	Queues  int    // of the native backend; 0 and 1: one. An adopted interface takes several only if it was made with multi_queue, and then more than one

	// Superframes lets the native backend exchange superframes with the kernel, if the kernel
	// supports them (Linux 6.2 and newer). Other hosts on the fabric need not support them: the
	// kernel cuts superframes up.
	Superframes bool

	Keeper Keeper // of native devices; nil: none
	kept   []int  // descriptors of the queues, if the device was kept
}

// Keeper keeps devices open beyond the process that made them.
type Keeper interface {
	// Take returns the descriptors of a kept device, one per queue. The caller owns them.
	Take(name string) (fds []int)
	// Keep keeps copies of an open device's descriptors.
	Keep(name string, fds ...int) error
	// Forget stops keeping a device. When it returns, no copy of the descriptors is left.
	Forget(name string) error
}

// takeKept returns the queues of a kept device if it has this kind and number of queues, else nil.
func takeKept(k Keeper, name string, kind uint16, queues int) []int {
	if k == nil {
		return nil
	}
	fds := k.Take(name)
	good := len(fds) == queues
	for _, fd := range fds {
		good = good && verify(fd, name, kind) == nil && unix.SetNonblock(fd, true) == nil
	}
	if good {
		return fds
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return nil
}

func keep(k Keeper, name string, fds ...int) error {
	if k == nil {
		return nil
	}
	return k.Keep(name, fds...)
}

package tap

import "errors"

// Port is an Ethernet port: a TAP device or a port of an in-memory segment. All calls return at once. A port has one
// owner at a time: Read, Write and Close must not run concurrently with each other.
type Port interface {
	// Name is the interface name, for people.
	Name() string
	// FD is readable (poll's POLLIN) while frames wait. The port keeps ownership of it.
	FD() int
	// Read takes up to len(bufs) waiting Ethernet frames, one per buffer, and writes their lengths to lens.
	// It returns the number taken, 0 and nil when none waits. Buffers must hold MTU()+18 bytes (Ethernet header and VLAN tag);
	// a longer frame is dropped and counted. lens must be at least as long as bufs.
	Read(bufs [][]byte, lens []int) (int, error)
	// Write sends frames and returns how many were taken: fewer than given, with a nil error, when the port is full.
	// Frames shorter than an Ethernet header or longer than MTU()+18 are dropped and counted as taken.
	Write(frames [][]byte) (int, error)
	// MTU is the largest Ethernet payload in bytes.
	MTU() int
	// Stats returns the port's counters.
	Stats() Stats
	// Close releases the port. A device the port created disappears with it. Closing twice is an error (net.ErrClosed).
	Close() error
}

// Stats counts what a port carried and dropped.
type Stats struct {
	RxFrames, RxBytes    uint64
	TxFrames, TxBytes    uint64
	RxDropped, TxDropped uint64 // malformed, too long, or no room
}

// FrameOverhead is the room for Ethernet header and one VLAN tag that buffers need above the MTU, bytes.
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
}

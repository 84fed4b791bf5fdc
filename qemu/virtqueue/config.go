package virtqueue

// MaxSize is the largest ring, Virtio §2.7 and §2.8.10.1.
const MaxSize = 32768

// Config places a ring. Addresses are guest-physical.
type Config struct {
	Size     uint16
	Desc     uint64 // descriptors
	Driver   uint64 // available ring, or the driver's event suppression
	Device   uint64 // used ring, or the device's event suppression
	Packed   bool
	Indirect bool   // indirect descriptors were negotiated
	EventIdx bool   // event indices were negotiated
	Base     uint32 // next available entry; of a packed ring with its wrap counter in bit 15
	Resume   bool   // instead of Base: go on where the device before left the ring
	Ledger   Ledger // of a packed ring; nil: nobody is to go on after this process
}

// Mark is a place in a ring.
type Mark struct {
	index  uint16
	wrap   bool
	chains int
}

// needEvent tells whether an index that somebody waits for was passed between old and new, Virtio
// §2.7.10.1.
func needEvent(event, new, old uint16) bool { return new-event-1 < new-old }

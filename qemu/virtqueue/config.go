package virtqueue

// MaxSize is the largest ring, Virtio §2.7 and §2.8.10.1.
const MaxSize = 32768

// Config describes a ring. Addresses are guest-physical.
type Config struct {
	Size     uint16
	Desc     uint64 // descriptors
	Driver   uint64 // available ring, or the driver's event suppression
	Device   uint64 // used ring, or the device's event suppression
	Packed   bool
	Indirect bool   // indirect descriptors were negotiated
	EventIdx bool   // event indices were negotiated
	Base     uint32 // next available entry; for a packed ring, bit 15 is the wrap counter
	Resume   bool   // ignore Base and continue where the previous device stopped
	Ledger   Ledger // of a packed ring; nil: no later process can resume the ring
}

// Mark is a position in a ring; see Ring.Mark.
type Mark struct {
	index  uint16
	wrap   bool
	chains int
}

// needEvent reports whether the index moved past the event index between old and new, Virtio
// §2.7.10.1.
func needEvent(event, new, old uint16) bool { return new-event-1 < new-old }

package ring

// CQReader is the driver's side of a completion queue.
type CQReader struct {
	mem    Bytes
	layout Layout
	next   uint32 // index of the next entry
	arming uint64 // number of the last arming
}

// NewCQReader returns a reader that starts at index 0 in phase 1. The driver must have zeroed the
// area.
func NewCQReader(mem Bytes, layout Layout) *CQReader {
	return &CQReader{mem: mem, layout: layout}
}

// Next returns the index of the next entry, which is the consumer index for Arm doorbells.
func (r *CQReader) Next() uint32 { return r.next }

// Poll copies the next entry, if there is one, to dst and consumes it. An entry has the layout's
// stride. The device may reuse the slot after Commit.
func (r *CQReader) Poll(dst []byte) (bool, error) {
	at := r.layout.slot(r.next)
	tail, err := r.mem.Load64(r.layout.tail(r.next))
	if err != nil || tail&phaseBit != r.layout.phase(r.next) {
		return false, err
	}
	if err := r.mem.ReadAt(at, dst[:r.layout.stride]); err != nil {
		return false, err
	}
	r.next++
	return true, nil
}

// Commit writes to memory how many entries were consumed.
func (r *CQReader) Commit() error {
	return r.mem.Store32(offCQConsumer, r.next)
}

// Arm requests, by the arm word, one event at the first entry that is not polled yet, or a later
// one; with solicitedOnly, at the first such entry that is solicited or failed. Entries already
// there cause no event, so the caller must check Ready before it sleeps.
func (r *CQReader) Arm(solicitedOnly bool) error {
	if r.arming = (r.arming + 1) << armNumber >> armNumber; r.arming == 0 {
		r.arming = 1
	}
	word := uint64(r.next) | r.arming<<armNumber
	if solicitedOnly {
		word |= armSolicited
	}
	return r.mem.Store64Release(offCQArm, word)
}

// Ready reports whether there is an entry to poll, with solicitedOnly one that is solicited or
// failed. Its loads and the store of Arm are sequentially consistent, and so are the device's
// stores of entries and its load of the arm word. So if an entry and an arming happen at the same
// time, one side sees the other's.
func (r *CQReader) Ready(solicitedOnly bool) (bool, error) {
	for i := r.next; i-r.next < r.layout.Entries(); i++ {
		tail, err := r.mem.Load64(r.layout.tail(i))
		if err != nil || tail&phaseBit != r.layout.phase(i) {
			return false, err
		}
		if !solicitedOnly {
			return true, nil
		}
		var b [3]byte // Status, Opcode, Flags
		if err := r.mem.ReadAt(r.layout.slot(i)+statusOffset, b[:]); err != nil {
			return false, err
		}
		if b[0] != 0 || b[2]&solicitedFlag != 0 {
			return true, nil
		}
	}
	return false, nil
}

package ring

// CQReader is the driver's side of a completion queue.
type CQReader struct {
	mem    Bytes
	layout Layout
	next   uint32 // index of the next entry
	arming uint64 // number of the last arming
}

// NewCQReader starts at index 0 in phase 1, on an area the driver has zeroed.
func NewCQReader(mem Bytes, layout Layout) *CQReader {
	return &CQReader{mem: mem, layout: layout}
}

// Next returns the index of the next entry: the consumer index for Arm doorbells.
func (r *CQReader) Next() uint32 { return r.next }

// Poll copies the next entry, of the layout's stride, to dst and takes it, if
// there is one. The slot is the device's again after Commit.
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

// Commit shows the device how far entries were taken.
func (r *CQReader) Commit() error {
	return r.mem.Store32(offCQConsumer, r.next)
}

// Arm asks, by the arm word, for one event at the first entry not yet polled or a
// later one; with solicitedOnly at the first that is solicited or failed. Entries
// that are there already bring no event: the caller looks with Ready before it
// sleeps.
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

// Ready reports whether there is an entry to poll, with solicitedOnly one that is
// solicited or failed. Its loads and the store of Arm are sequentially consistent,
// as are the device's stores of entries and its load of the word: of an entry and
// an arming that meet, one side sees the other.
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

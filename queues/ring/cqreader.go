package ring

// CQReader is the driver's side of a completion queue.
type CQReader struct {
	mem    Bytes
	layout Layout
	next   uint32 // index of the next entry
}

// NewCQReader starts at index 0 in phase 1, on an area the driver has zeroed.
func NewCQReader(mem Bytes, layout Layout) *CQReader {
	return &CQReader{mem: mem, layout: layout}
}

// Next returns the index of the next entry: the consumer index for Arm doorbells.
func (r *CQReader) Next() uint32 { return r.next }

// Poll copies the next entry of CQEntrySize bytes to dst and takes it, if
// there is one. The slot is the device's again after Commit.
func (r *CQReader) Poll(dst []byte) (bool, error) {
	at := r.layout.slot(r.next)
	tail, err := r.mem.Load64(at + tailOffset)
	if err != nil || tail&phaseBit != r.layout.phase(r.next) {
		return false, err
	}
	if err := r.mem.ReadAt(at, dst[:CQEntrySize]); err != nil {
		return false, err
	}
	r.next++
	return true, nil
}

// Commit shows the device how far entries were taken. A queue without header
// has no such index.
func (r *CQReader) Commit() error {
	if r.layout.header == 0 {
		return nil
	}
	return r.mem.Store32(offCQConsumer, r.next)
}

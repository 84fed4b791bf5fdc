package ring

// CQWriter is the device's side of a completion queue.
type CQWriter struct {
	mem      Bytes
	layout   Layout
	next     uint32 // index of the next entry
	consumer uint32 // last consumer index read
	served   uint64 // number of the arming that the last event was sent for
}

// NewCQWriter returns a writer that starts at index 0 in phase 1.
func NewCQWriter(mem Bytes, layout Layout) *CQWriter {
	return &CQWriter{mem: mem, layout: layout}
}

// Next returns the index of the next entry.
func (w *CQWriter) Next() uint32 { return w.next }

// Consumer returns the last consumer index read.
func (w *CQWriter) Consumer() uint32 { return w.consumer }

// Entries returns the number of entries of the queue.
func (w *CQWriter) Entries() uint32 { return w.layout.Entries() }

// Full reports whether no slot is free. It reads the driver's consumer index only if the last known
// one leaves none free.
func (w *CQWriter) Full() (bool, error) {
	if w.next-w.consumer < w.layout.Entries() {
		return false, nil
	}
	free, err := w.Look()
	return free == 0 && err == nil, err
}

// Look reads the driver's consumer index and returns the number of free slots.
func (w *CQWriter) Look() (free uint32, err error) {
	c, err := w.mem.Load32(offCQConsumer)
	if err != nil {
		return 0, err
	}
	// The consumer index must not go back, which would make the queue more than full, nor pass the
	// entries written.
	n, ok := w.layout.between(c, w.next)
	if !ok {
		return 0, ErrIndex
	}
	w.consumer = c
	return w.layout.Entries() - n, nil
}

// Write writes one entry of the layout's stride: first everything but its tail word, then the tail
// word with the phase in one atomic store. It returns ErrFull if the driver has made no room.
func (w *CQWriter) Write(entry []byte) error {
	full, err := w.Full()
	if err != nil {
		return err
	}
	if full {
		return ErrFull
	}
	at := w.layout.slot(w.next)
	tail := w.layout.stride - tailSize
	if err := w.mem.WriteAt(at, entry[:tail]); err != nil {
		return err
	}
	if err := w.mem.Store64Release(at+uint64(tail), w.layout.phase(w.next)); err != nil {
		return err
	}
	w.next++
	return nil
}

// Commit writes the producer index to memory. The phase bits already tell the driver; the index is
// for information.
func (w *CQWriter) Commit() error {
	return w.mem.Store32(offCQProducer, w.next)
}

// Wanted reads the driver's arm word after an entry was written and reports whether it requests an
// event now. It returns true once for each arming.
func (w *CQWriter) Wanted(solicited bool) (bool, error) {
	word, err := w.mem.Load64(offCQArm)
	if err != nil {
		return false, err
	}
	number := word >> armNumber
	if number == w.served || word&armSolicited != 0 && !solicited || int32(w.next-uint32(word)) <= 0 {
		return false, nil
	}
	w.served = number
	return true, nil
}

// ArmedAhead reads the arm word and reports whether it requests an event for an entry behind the
// next one, although no driver can have polled so far.
func (w *CQWriter) ArmedAhead() (index uint32, ahead bool) {
	word, err := w.mem.Load64(offCQArm)
	return uint32(word), err == nil && word>>armNumber != w.served && int32(uint32(word)-w.next) > 0
}

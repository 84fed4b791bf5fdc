package ring

// CQWriter is the device's side of a completion queue.
type CQWriter struct {
	mem      Bytes
	layout   Layout
	next     uint32 // index of the next entry
	consumer uint32 // last consumer index read
	served   uint64 // number of the arming that the last event was for
}

// NewCQWriter starts at index 0 in phase 1.
func NewCQWriter(mem Bytes, layout Layout) *CQWriter {
	return &CQWriter{mem: mem, layout: layout}
}

// Next returns the index of the next entry.
func (w *CQWriter) Next() uint32 { return w.next }

// Consumer returns the last consumer index read.
func (w *CQWriter) Consumer() uint32 { return w.consumer }

// Entries returns the entries of the queue.
func (w *CQWriter) Entries() uint32 { return w.layout.Entries() }

// Full reports whether no slot is free. It asks the driver's consumer index
// only when the last known one leaves none.
func (w *CQWriter) Full() (bool, error) {
	if w.next-w.consumer < w.layout.Entries() {
		return false, nil
	}
	free, err := w.Look()
	return free == 0 && err == nil, err
}

// Look reads the driver's consumer index and returns the free slots.
func (w *CQWriter) Look() (free uint32, err error) {
	c, err := w.mem.Load32(offCQConsumer)
	if err != nil {
		return 0, err
	}
	// The consumer may not go back, which would leave more than a queue, nor pass the entries
	// written.
	n, ok := w.layout.between(c, w.next)
	if !ok {
		return 0, ErrIndex
	}
	w.consumer = c
	return w.layout.Entries() - n, nil
}

// Write writes one entry of the layout's stride: all but its tail word first,
// then the tail word with the phase, in one atomic store. It is ErrFull when
// the driver has not made room.
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

// Commit shows the driver how many entries were written. The phase bits say
// it already; the index is for information.
func (w *CQWriter) Commit() error {
	return w.mem.Store32(offCQProducer, w.next)
}

// Wanted looks at the driver's arm word after an entry was written and reports
// whether it asks for an event now. It is true once for each arming.
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

// ArmedAhead reads the arm word and reports whether it asks for an entry behind the
// next one: no driver can have polled so far.
func (w *CQWriter) ArmedAhead() (index uint32, ahead bool) {
	word, err := w.mem.Load64(offCQArm)
	return uint32(word), err == nil && word>>armNumber != w.served && int32(uint32(word)-w.next) > 0
}

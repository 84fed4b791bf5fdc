package ring

import (
	"errors"
	"testing"
)

// TestPending: an entry is pending until the device took it; a consumer that cannot be is noticed.
func TestPending(t *testing.T) {
	l := QueueLayout(2, 6)
	mem := newMem(l)
	p := NewProducer(mem, l)
	for range 3 {
		must(t, p.Push(make([]byte, 64)))
	}
	_, _, err := p.Publish()
	must(t, err)
	for taken := range uint32(4) {
		must(t, mem.Store32(offConsumer, taken))
		for i := range uint32(3) {
			if pending, err := p.Pending(i); err != nil || pending != (i >= taken) {
				t.Errorf("%d taken: entry %d is pending: %t, %v", taken, i, pending, err)
			}
		}
	}
	for _, bad := range []uint32{4, 1<<32 - 2} {
		must(t, mem.Store32(offConsumer, bad))
		if _, err := p.Pending(0); !errors.Is(err, ErrIndex) {
			t.Errorf("consumer %#x: %v", bad, err)
		}
	}
	f := &failing{mem, 0}
	if _, err := NewProducer(f, l).Pending(0); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

// TestFree: how many slots are free, asked of the device only when none seems to be.
func TestFree(t *testing.T) {
	l := QueueLayout(2, 6)
	mem := newMem(l)
	p := NewProducer(mem, l)
	for i := range uint32(4) {
		if free, err := p.Free(); err != nil || free != 4-i {
			t.Errorf("%d free with %d pushed, %v", free, i, err)
		}
		must(t, p.Push(make([]byte, 64)))
	}
	_, _, err := p.Publish()
	must(t, err)
	must(t, mem.Store32(offConsumer, 3))
	if free, err := p.Free(); err != nil || free != 3 {
		t.Errorf("%d free with 3 taken, %v", free, err)
	}
	must(t, mem.Store32(offConsumer, 4))
	if free, err := p.Free(); err != nil || free != 3 { // there are some
		t.Errorf("%d free, %v", free, err)
	}
}

// TestReadyEntries: what a driver finds that is about to sleep: with solicited entries only, one that
// is solicited or failed, wherever it is among those that are there.
func TestReadyEntries(t *testing.T) {
	const plain, solicited, failed = 0, 1, 2
	for _, c := range []struct {
		entries    []int
		any, ready bool
	}{
		{nil, false, false},
		{[]int{plain}, true, false},
		{[]int{solicited}, true, true},
		{[]int{failed}, true, true},
		{[]int{plain, plain, solicited}, true, true},
		{[]int{plain, plain, plain, failed}, true, true},
		{[]int{plain, plain, plain, plain}, true, false},
	} {
		l := CQLayout(2)
		mem := newMem(l)
		w, r := NewCQWriter(mem, l), NewCQReader(mem, l)
		for _, kind := range c.entries {
			e := make([]byte, CQEntrySize)
			switch kind {
			case solicited:
				e[statusOffset+2] = solicitedFlag
			case failed:
				e[statusOffset] = 5
			}
			e[statusOffset+1], e[statusOffset+2] = 0x80, e[statusOffset+2]|1 // opcode, another flag
			must(t, w.Write(e))
		}
		for only, want := range map[bool]bool{false: c.any, true: c.ready} {
			if got, err := r.Ready(only); err != nil || got != want {
				t.Errorf("%v: ready %t with solicited only %t, %v", c.entries, got, only, err)
			}
		}
		for n := range 4 { // memory that fails
			f := &failing{mem, n}
			if got, err := NewCQReader(f, l).Ready(true); f.left < 0 && (got || !errors.Is(err, errBroken)) {
				t.Errorf("%v: ready %t when access %d fails, %v", c.entries, got, n, err)
			}
		}
	}
}

// TestArmingNumbers: armings are numbered from 1 and never 0, which is a word that was never written.
func TestArmingNumbers(t *testing.T) {
	l := CQLayout(2)
	mem := newMem(l)
	r := NewCQReader(mem, l)
	number := func(only bool) uint64 {
		must(t, r.Arm(only))
		word, err := mem.Load64(offCQArm)
		must(t, err)
		if uint32(word) != r.next || (word&armSolicited != 0) != only {
			t.Errorf("word %#x", word)
		}
		return word >> armNumber
	}
	r.next = 1<<32 - 1
	if a, b := number(false), number(true); a != 1 || b != 2 {
		t.Errorf("armings %d and %d", a, b)
	}
	r.arming = 1<<31 - 2
	if a, b := number(true), number(false); a != 1<<31-1 || b != 1 {
		t.Errorf("armings %d and %d", a, b)
	}
}

// TestLook: how many slots the driver has freed.
func TestLook(t *testing.T) {
	l := CQLayout(1)
	mem := newMem(l)
	w := NewCQWriter(mem, l)
	must(t, w.Write(make([]byte, CQEntrySize)))
	if free, err := w.Look(); err != nil || free != 1 || w.Consumer() != 0 {
		t.Errorf("%d free, %v", free, err)
	}
	must(t, mem.Store32(offCQConsumer, 1))
	if free, err := w.Look(); err != nil || free != 2 || w.Consumer() != 1 || w.Entries() != 2 || w.Next() != 1 {
		t.Errorf("%d free, consumer %d, %v", free, w.Consumer(), err)
	}
}

package queues

import (
	"errors"
	"slices"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// UseTape makes a tape record the results of accesses to the memory, or supply them when it
// plays. What is written is added to the sums of what goes out. number is that of the memory's
// driver.
func (m *Memory) UseTape(t *tape.Tape, number uint32) { m.tape, m.number = t, number }

// whys lists the reasons of a FaultError, as the tape numbers them: from 1.
var whys = []string{WhyUnmapped, WhyBroken, WhyMisaligned, WhyContended, WhyOutside}

// outcome passes the outcome of an access through the tape.
func outcome(t *tape.Tape, k tape.Kind, err error) error {
	if !t.Ask(k) {
		why := t.Uint()
		if why == 0 {
			return nil
		}
		return &FaultError{Why: whys[min(why-1, uint64(len(whys)-1))], Addr: t.Uint(), Len: t.Uint()}
	}
	if err == nil {
		t.PutUint(0)
		return nil
	}
	var f *FaultError
	_ = errors.As(err, &f) // all errors of a Memory are
	t.PutUint(uint64(slices.Index(whys, f.Why) + 1))
	t.PutUint(f.Addr)
	t.PutUint(f.Len)
	return err
}

// readTaped does what ReadAt does, with a tape.
func (a *Area) readTaped(off uint64, dst []byte) error {
	for at := 0; at < len(dst); {
		addr, n := a.addr(off, uint64(len(dst)-at))
		end := at + int(min(n, uint64(len(dst)-at)))
		head := func([]byte) int { return max(0, min(a.Head(dst[:end]), end)-at) }
		if a.Head == nil {
			head = nil
		}
		if err := a.mem.tapeRead(addr, dst[at:end], head, a.mem.copy(addr, dst[at:end], false)); err != nil {
			return err
		}
		off, at = off+uint64(end-at), end
	}
	return nil
}

// tapeRead passes what was read through the tape. head is an Area's.
func (m *Memory) tapeRead(addr uint64, dst []byte, head func([]byte) int, err error) error {
	t := m.tape
	if len(dst) == 0 || !t.Active() {
		return err
	}
	t.OutUint(tape.Reads, addr)
	t.OutUint(tape.Reads, uint64(len(dst)))
	t.Place(m.number, addr, uint64(len(dst)))
	if err = outcome(t, tape.MemRead, err); err == nil {
		n := len(dst)
		if head != nil && !t.Plays() {
			n = head(dst)
		}
		t.Part(dst, n)
	}
	return err
}

// tapeWrite adds what was written to the sums, and passes the outcome through the tape. head is
// an Area's.
func (m *Memory) tapeWrite(addr uint64, src []byte, head func([]byte) int, err error) error {
	t := m.tape
	if len(src) == 0 || !t.Active() {
		return err
	}
	t.OutUint(tape.Writes, addr)
	n := len(src)
	if head != nil {
		n = head(src)
	}
	t.OutPart(tape.Writes, src, n, 0)
	t.Place(m.number, addr, uint64(len(src)))
	return outcome(t, tape.MemWrite, err)
}

// tapeLoad passes what was loaded from a word through the tape.
func (m *Memory) tapeLoad(k tape.Kind, addr, v uint64, err error) (uint64, error) {
	t := m.tape
	if !t.Active() {
		return v, err
	}
	t.OutUint(tape.Reads, addr)
	t.Place(m.number, addr, 0)
	if err = outcome(t, k, err); err != nil {
		return 0, err
	}
	return t.Word(v), nil
}

// tapeStore adds what was stored to the sums, and passes the outcome through the tape.
func (m *Memory) tapeStore(addr, v uint64, payload bool, err error) error {
	t := m.tape
	if !t.Active() {
		return err
	}
	t.OutUint(tape.Writes, addr)
	if payload {
		t.OutPayload(tape.Writes, v)
	} else {
		t.OutUint(tape.Writes, v)
	}
	t.Place(m.number, addr, 0)
	return outcome(t, tape.MemStore, err)
}

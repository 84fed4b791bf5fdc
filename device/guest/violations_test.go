package guest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestEvidenceOfASession checks that a later session's violation replaces what an earlier session
// did first. The count goes on, and the newest violation comes first. (DEV-105)
func TestEvidenceOfASession(t *testing.T) {
	var l Violations
	note := func(clause abi.Clause, queue, index uint32) bool {
		return l.Note(int64(index), &abi.Violation{Clause: uint16(clause), Ring: abi.RingRegister, Queue: queue, Index: index})
	}
	check := func(i, index, count uint32) {
		t.Helper()
		if v, ok := l.Newest(i); !ok || v.Index != index || v.Count != count {
			t.Errorf("%d: %+v, %t; want index %d, %d times", i, v, ok, index, count)
		}
	}
	l.Begin()
	if !note(abi.DRV306, 0, 24) || note(abi.DRV306, 0, 30) || !note(abi.DRV306, 1, 40) {
		t.Error("wrong about what is first")
	}
	check(1, 24, 2)
	check(0, 40, 1)
	l.Begin()
	if !note(abi.DRV306, 0, 26) || note(abi.DRV306, 0, 28) {
		t.Error("wrong about what is first in the second session")
	}
	check(0, 26, 4)
	check(1, 40, 1)
	if _, ok := l.Newest(2); ok || l.All()[1].At != 26 {
		t.Errorf("kept are %+v", l.All())
	}
	if n := l.Clear(); n != 2 || len(l.All()) != 0 {
		t.Errorf("%d cleared, left %+v", n, l.All())
	}
	if !note(abi.DRV306, 0, 50) {
		t.Error("not first after it was cleared")
	}
	check(0, 50, 1)
}

// TestViolationsMakeRoom checks that the newest 64 violations are kept.
func TestViolationsMakeRoom(t *testing.T) {
	var l Violations
	for i := range uint32(1000) {
		l.Note(0, &abi.Violation{Clause: 801, Queue: i})
		if n := len(l.All()); n > maxViolations {
			t.Fatalf("%d are kept", n)
		}
	}
	for i := range uint32(maxViolations) {
		if v, ok := l.Newest(i); !ok || v.Queue != 999-i {
			t.Fatalf("%d: %+v, %t", i, v, ok)
		}
	}
}

// TestMistakesAreNoViolations checks that a wrong work request is kept beside broken rules, once
// for each queue and status, and that QueryViolation skips it.
func TestMistakesAreNoViolations(t *testing.T) {
	var l Violations
	l.Begin()
	l.Note(1, &abi.Violation{Clause: uint16(abi.DRV306), Index: 24})
	wrong := func(queue uint32, st abi.WCStatus) bool {
		return l.NoteMistake(2, &verbs.Mistake{Ring: abi.RingSQ, Queue: queue, Status: st})
	}
	if !wrong(1, abi.WCLocProtErr) || wrong(1, abi.WCLocProtErr) || !wrong(1, abi.WCLocLenErr) || !wrong(2, abi.WCLocProtErr) {
		t.Error("wrong about what is first")
	}
	l.Note(3, &abi.Violation{Clause: uint16(abi.DRV801), Index: 25})
	if all := l.All(); len(all) != 5 || all[1].Count != 2 || all[1].Clause != 0 {
		t.Errorf("%+v", all)
	}
	for i, want := range []uint32{25, 24} {
		if v, ok := l.Newest(uint32(i)); !ok || v.Index != want {
			t.Errorf("%d: %+v, %t", i, v, ok)
		}
	}
	if v, ok := l.Newest(2); ok {
		t.Errorf("%+v", v)
	}
}

// TestCountEndsAtTheMost checks that the count of a violation stops at its largest value.
func TestCountEndsAtTheMost(t *testing.T) {
	var l Violations
	v := &abi.Violation{Clause: 801}
	l.Note(0, v)
	l.list[0].Count = math.MaxUint32 - 1
	for range 3 {
		if l.Note(0, v); l.list[0].Count != math.MaxUint32 {
			t.Errorf("counted %d", l.list[0].Count)
		}
	}
}

// TestWhatIsTheSameViolation checks that violations of the same clause at the same queue of the
// same ring are merged.
func TestWhatIsTheSameViolation(t *testing.T) {
	var l Violations
	for _, c := range []struct {
		v     abi.Violation
		first bool
	}{
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 1}, true},
		{abi.Violation{Clause: 2, Ring: abi.RingAdmin, Queue: 1}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingStream, Queue: 1}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 2}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 1, Index: 7}, false},
	} {
		if first := l.Note(0, &c.v); first != c.first {
			t.Errorf("%+v: first %v", c.v, first)
		}
	}
	if n := len(l.All()); n != 4 {
		t.Errorf("%d are kept", n)
	}
	if _, ok := l.Newest(4); ok {
		t.Error("there is one more")
	}
	if _, ok := l.Newest(3); !ok {
		t.Error("the oldest is not there")
	}
}

// verdicts records the rules that a driver broke, as "clause where queue index bytes".
type verdicts []string

func (v *verdicts) Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	*v = append(*v, fmt.Sprintf("%d %v %d %d %x", clause, where, queue, index, b))
}

// TestWhatRegistersBreak checks which clause each wrong register access breaks, and that a correct
// one breaks none.
func TestWhatRegistersBreak(t *testing.T) {
	read := func(offset, width uint32) Request { return Request{Kind: RegRead, Offset: offset, Width: width} }
	write := func(offset, width uint32, v uint64) Request {
		return Request{Kind: RegWrite, Offset: offset, Width: width, Value: v}
	}
	for _, c := range []struct {
		what   string
		it     Request
		st     abi.Status
		before abi.State
		want   abi.Clause
	}{
		{"a read", read(abi.RegMagic, 4), abi.StatusOK, abi.StateReset, 0},
		{"a read of what can be written, too", read(abi.RegAdminSQ, 8), abi.StatusOK, abi.StateReset, 0},
		{"a read of no register", read(0x9000, 4), abi.StatusNotFound, abi.StateReset, abi.DRV306},
		{"a read in another width", read(abi.RegMagic, 8), abi.StatusInvalidArgument, abi.StateReset, abi.DRV306},
		{"a read of what can only be written", read(abi.RegControl, 4), abi.StatusDenied, abi.StateReset, abi.DRV306},
		{"a read in a bad state", read(abi.RegAdminSQ, 8), abi.StatusBadState, abi.StateReset, 0},
		{"a write", write(abi.RegAdminSQ, 8, 1<<40), abi.StatusOK, abi.StateReset, 0},
		{"a write to no register", write(0x9000, 4, 0), abi.StatusNotFound, abi.StateReset, abi.DRV306},
		{"a write in another width", write(abi.RegAdminSQ, 4, 0), abi.StatusInvalidArgument, abi.StateReset, abi.DRV306},
		{"a write of what can only be read", write(abi.RegMagic, 4, 0), abi.StatusDenied, abi.StateReset, abi.DRV306},
		{"the most of four bytes", write(abi.RegAdminEntries, 4, 1<<32-1), abi.StatusInvalidArgument, abi.StateReset, 0},
		{"more than four bytes", write(abi.RegAdminEntries, 4, 1<<32), abi.StatusInvalidArgument, abi.StateReset, abi.DRV102},
		{"a write after a fault", write(abi.RegControl, 4, 1), abi.StatusBadState, abi.StateError, abi.DRV304},
		{"a control in another state", write(abi.RegControl, 4, 1), abi.StatusBadState, abi.StateReady, 0},
		{"a control that is done after a fault", write(abi.RegControl, 4, 2), abi.StatusOK, abi.StateError, 0},
		{"a write in a bad state", write(abi.RegAdminEntries, 4, 2), abi.StatusBadState, abi.StateReady, abi.DRV301},
		{"a write in a bad state after a fault", write(abi.RegAdminEntries, 4, 2), abi.StatusBadState, abi.StateError, abi.DRV301},
		{"queues where no memory is", write(abi.RegControl, 4, 1), abi.StatusMemoryFault, abi.StateReset, abi.DRV401},
	} {
		var v verdicts
		judgeRegister(&v, &c.it, c.st, c.before)
		var want []string
		if c.want != 0 {
			written := ""
			if c.it.Kind == RegWrite {
				for i := range 8 {
					written += fmt.Sprintf("%02x", byte(c.it.Value>>(8*i)))
				}
			}
			want = []string{fmt.Sprintf("%d %v 0 %d %s", c.want, abi.RingRegister, c.it.Offset, written)}
		}
		if !slices.Equal(v, want) {
			t.Errorf("%s: %q, want %q", c.what, v, want)
		}
	}
}

// TestAreasAreZero checks that strict mode finds the first byte of an admin queue's area that is
// not zero, and shows the eight aligned bytes around it.
func TestAreasAreZero(t *testing.T) {
	const length = 2 * abi.PageSize
	for _, at := range []int{-1, 0, 5, 8, length - 1} {
		mem := make([]byte, 4*abi.PageSize)
		for i := range 2 {
			mem[3*abi.PageSize+8*i+1] = byte(i * abi.PageSize >> 8)
		}
		var want []string
		if at >= 0 {
			mem[at] = 7
			b := make([]byte, 8)
			b[at%8] = 7
			want = []string{fmt.Sprintf("%d %v 0 %d %x", abi.DRV301, abi.RingAdmin, at, b)}
		}
		area, err := queues.ReadArea(queues.NewMemory([]queues.Region{{Mem: mem}}), 3*abi.PageSize, 1, queues.Span{Length: length})
		if err != nil {
			t.Fatal(err)
		}
		for _, strict := range []bool{true, false} {
			var v verdicts
			if err := judgeArea(&v, area, strict); err != nil {
				t.Error(err)
			}
			for i := range v { // as much as a violation shows
				if n := strings.LastIndexByte(v[i], ' ') + 1 + 2*8; n < len(v[i]) {
					v[i] = v[i][:n]
				}
			}
			if !strict && v != nil || strict && !slices.Equal(v, want) {
				t.Errorf("byte %d, strict %v: %q, want %q", at, strict, v, want)
			}
		}
	}
}

// TestWhatDoorbellsBreak checks that a doorbell message beside a ring in use is one violation, and
// reserved bytes another.
func TestWhatDoorbellsBreak(t *testing.T) {
	d := abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 3, Index: 9}
	var is [abi.DoorbellSize]byte
	d.Marshal(is[:])
	raw := is
	raw[abi.DoorbellSize-1] = 1
	beside := fmt.Sprintf("%d %v 3 9 %x", abi.DRV1004, abi.RingStream, is)
	reserved := fmt.Sprintf("%d %v 3 9 %x", abi.DRV102, abi.RingStream, raw)
	for _, c := range []struct {
		rang bool
		raw  *[abi.DoorbellSize]byte
		want []string
	}{{false, nil, nil}, {true, nil, []string{beside}}, {false, &raw, []string{reserved}}, {true, &raw, []string{beside, reserved}}} {
		var v verdicts
		if judgeDoorbell(&v, c.rang, &d, c.raw); !slices.Equal(v, c.want) {
			t.Errorf("%q, want %q", v, c.want)
		}
	}
}

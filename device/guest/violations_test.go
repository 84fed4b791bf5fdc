package guest

import (
	"math"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestALaterSessionReplacesTheEvidenceOfAnEarlierOne checks that a later session's violation
// replaces what an earlier session did first. The count goes on, and the newest violation comes
// first. (DEV-105)
func TestALaterSessionReplacesTheEvidenceOfAnEarlierOne(t *testing.T) {
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

// TestTheNewestViolationsAreKept checks that the newest 64 violations are kept.
func TestTheNewestViolationsAreKept(t *testing.T) {
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

// TestAWrongWorkRequestIsNoViolation checks that a wrong work request is kept beside broken rules,
// once for each queue and status, and that QueryViolation skips it.
func TestAWrongWorkRequestIsNoViolation(t *testing.T) {
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

// TestACountOfViolationsDoesNotWrap checks that the count of a violation stops at its largest
// value.
func TestACountOfViolationsDoesNotWrap(t *testing.T) {
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

// TestViolationsOfOneRuleAtOneQueueAreOne checks that violations of the same clause at the same
// queue of the same ring are merged.
func TestViolationsOfOneRuleAtOneQueueAreOne(t *testing.T) {
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

// TestEachWrongAccessBreaksItsClause checks which clause each wrong register access breaks, and
// that a correct one breaks none.
func TestEachWrongAccessBreaksItsClause(t *testing.T) {
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
		if got := brokenByAccess(&c.it, c.st, c.before); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// TestADoorbellMessageBesideARingBreaksARule checks that a doorbell message beside a ring in use is
// one violation, and reserved bytes another.
func TestADoorbellMessageBesideARingBreaksARule(t *testing.T) {
	dirty := [abi.DoorbellSize]byte{abi.DoorbellSize - 1: 1}
	for _, c := range []struct {
		rang bool
		raw  *[abi.DoorbellSize]byte
		want []abi.Clause
	}{
		{false, nil, nil},
		{true, nil, []abi.Clause{abi.DRV1004}},
		{false, &dirty, []abi.Clause{abi.DRV102}},
		{true, &dirty, []abi.Clause{abi.DRV1004, abi.DRV102}},
	} {
		d := newAdminDriver(t, 4)
		b := d.f.Driver()
		b.UsesRing = c.rang
		r := Request{Kind: Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellAdmin, Queue: 3}, Dirty: c.raw}
		if b.handle(0, &r); !slices.Equal(d.broke(), c.want) {
			t.Errorf("beside a ring %v, with reserved bytes %v: %v, want %v", c.rang, c.raw != nil, d.broke(), c.want)
		}
		for _, v := range d.f.violations.All() {
			if v.Ring != abi.RingStream || v.Queue != 3 || v.Index != 0 || v.Length != abi.DoorbellSize {
				t.Errorf("%+v", v)
			}
		}
	}
}

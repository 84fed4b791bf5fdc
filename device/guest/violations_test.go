package guest

import (
	"testing"

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

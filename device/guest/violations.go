package guest

import (
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// maxViolations is how many violations a function keeps; the oldest makes room for a new one.
const maxViolations = 64

// Violation records that a driver broke a rule of docs/abi or, with Clause 0, posted a wrong work
// request, and when its session first did so.
type Violation struct {
	abi.Violation
	Status  abi.WCStatus // of the wrong work request
	Why     string       // why the work request was wrong; "": a rule was broken
	At      falcon.Time
	session uint32
}

// Violations holds the rules that the drivers of one function broke, over resets and sessions
// (DEV-105). A violation of the same rule at the same queue is kept once and counted. The entry
// shows the first case of the newest session that broke the rule, since an earlier session is no
// evidence against a later driver.
type Violations struct {
	list    []Violation // oldest first
	session uint32
	noted   uint64 // calls of note
}

// Noted returns how often something was recorded. While that number stays the same, nothing was added to the
// list.
func (l *Violations) Noted() uint64 { return l.noted }

// Begin begins a new session.
func (l *Violations) Begin() { l.session++ }

// Note records v, with a Count of its own, and reports whether this is the first time in the
// session.
func (l *Violations) Note(now falcon.Time, v *abi.Violation) (first bool) {
	return l.note(now, Violation{Violation: *v}, nil)
}

// NoteMistake records a wrong work request in the same way.
func (l *Violations) NoteMistake(now falcon.Time, m *verbs.Mistake) (first bool) {
	return l.note(now, Violation{Violation: abi.Violation{Ring: m.Ring, Queue: m.Queue, Index: m.Index}, Status: m.Status}, &m.Why)
}

// note records v. If it is kept, its Why is the text of why.
func (l *Violations) note(now falcon.Time, v Violation, why *verbs.Reason) (first bool) {
	l.noted++
	is := v
	is.At, is.session, is.Count = now, l.session, 1
	for i := range l.list {
		old := &l.list[i]
		if old.Clause != v.Clause || old.Status != v.Status || old.Ring != v.Ring || old.Queue != v.Queue {
			continue
		}
		if old.Count < 1<<32-1 {
			old.Count++
		}
		if old.session == l.session {
			return false
		}
		is.Count = old.Count
		l.drop(i)
		break
	}
	if why != nil {
		is.Why = why.String()
	}
	if len(l.list) == maxViolations {
		l.drop(0)
	}
	l.list = append(l.list, is)
	return true
}

func (l *Violations) drop(i int) { l.list = l.list[:i+copy(l.list[i:], l.list[i+1:])] }

// All returns the list, oldest first. It is valid until the next call.
func (l *Violations) All() []Violation { return l.list }

// Newest returns violation i of a rule, counted from the newest (0); false when there are no more.
func (l *Violations) Newest(i uint32) (abi.Violation, bool) {
	for _, v := range slices.Backward(l.list) {
		if v.Clause == 0 {
			continue
		}
		if i == 0 {
			return v.Violation, true
		}
		i--
	}
	return abi.Violation{}, false
}

// Clear removes all and returns how many there were.
func (l *Violations) Clear() (n int) {
	n, l.list = len(l.list), nil
	return n
}

// brokenByAccess returns the clause that a register access broke; 0: none. st is its result, and
// before the state of the function when it came.
func brokenByAccess(it *Request, st abi.Status, before abi.State) abi.Clause {
	r := abi.LookupRegister(it.Offset)
	switch write := it.Kind == RegWrite; {
	case r == nil || r.Width != it.Width, write && !r.Writable, !write && !r.Readable:
		return abi.DRV306
	case write && it.Width == 4 && it.Value>>32 != 0:
		return abi.DRV102
	case write && st == abi.StatusBadState && before == abi.StateError && it.Offset == abi.RegControl:
		return abi.DRV304
	case write && st == abi.StatusBadState && it.Offset != abi.RegControl:
		return abi.DRV301
	case write && st == abi.StatusMemoryFault:
		return abi.DRV401
	}
	return 0
}

package guest

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// vectors is a window with event queues, with the driver's ends of them.
type vectors struct {
	queues.Bell
	areas  []ring.Bytes
	rings  []*ring.Consumer // the driver's ends
	raised []int
	broke  []int // vectors that the driver broke the rules of
}

func newVectors(n int) *vectors {
	v := &vectors{}
	for range n {
		area := ring.Mem(make([]byte, eventLayout.Size()))
		v.areas = append(v.areas, area)
		v.rings = append(v.rings, ring.NewConsumer(area, eventLayout))
	}
	return v
}

func (v *vectors) EventQueues() []ring.Bytes                 { return v.areas }
func (v *vectors) Interrupt(i int)                           { v.raised = append(v.raised, i) }
func (v *vectors) BrokeEvents(vector int, _ uint32, _ error) { v.broke = append(v.broke, vector) }

// show ends a Step and returns the vectors that were raised.
func (v *vectors) show(s *EventQueues) (raised []int) {
	var out effect.List
	s.Show(&out)
	out.Do()
	raised, v.raised = v.raised, nil
	return raised
}

// take takes the visible records of a vector, and asks for an interrupt for the next one.
func (v *vectors) take(t *testing.T, i int) (cqns []uint32) {
	t.Helper()
	r := v.rings[i]
	if _, err := r.Poll(); err != nil {
		t.Fatal(err)
	}
	for r.Ready() > 0 {
		var b [abi.WindowEventSize]byte
		if err := r.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		var e abi.WindowEvent
		e.Unmarshal(b[:])
		cqns = append(cqns, e.CQN)
		r.Take()
	}
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Arm(); err != nil {
		t.Fatal(err)
	}
	return cqns
}

// TestACQSendsItsEventsToTheVectorItWasMadeWith checks that the events of a completion queue go to
// the vector that its driver chose, or to messages, that there are only so many vectors, and that
// each has room for one record of each of its completion queues.
func TestACQSendsItsEventsToTheVectorItWasMadeWith(t *testing.T) {
	v := newVectors(3)
	var s EventQueues
	all := s.Open(v, v)
	for vector, want := range []*EventQueue{nil, all[0], all[1], all[2]} {
		if q, st := Choose(all, uint16(vector)); q != want || st != abi.StatusOK {
			t.Errorf("vector %d: %v", vector, st)
		}
	}
	if _, st := Choose(all, 4); st != abi.StatusInvalidArgument {
		t.Errorf("vector 4 of 3: %v", st)
	}
	if _, st := Choose(nil, 1); st != abi.StatusInvalidArgument {
		t.Errorf("vector 1 of none: %v", st)
	}
	const most = 1 << abi.WindowEventsLog2
	var c, other CQEvents
	for n := range uint32(most) {
		if _, st := Choose(all, 1); st != abi.StatusOK {
			t.Fatalf("no room for %d", n)
		}
		c.Add(n, all[0])
	}
	if _, st := Choose(all, 1); st != abi.StatusNoResources {
		t.Errorf("one too many: %v", st)
	}
	for n := range uint32(most) {
		if !c.Post(n) {
			t.Fatalf("CQ %d has no events", n)
		}
	}
	if v.show(&s); len(v.take(t, 0)) != most || v.broke != nil {
		t.Errorf("a record of each has no room: %v", v.broke)
	}
	c.Remove(7)
	c.Remove(7)
	if _, st := Choose(all, 1); st != abi.StatusOK || c.Post(7) {
		t.Errorf("one is gone: %v", st)
	}
	other.Add(1, all[0])
	c.Clear()
	if c.Post(1) || all[0].cqs != 1 {
		t.Errorf("%d have their events there after one function's are forgotten", all[0].cqs)
	}
}

// TestAStepRaisesAVectorOnce checks that events of a Step become visible once at its end, one
// record per completion queue and one interrupt per vector. While the driver has not taken a
// record, no further one is added for that completion queue.
func TestAStepRaisesAVectorOnce(t *testing.T) {
	v := newVectors(2)
	var s EventQueues
	all := s.Open(v, v)
	var c CQEvents
	c.Add(10, all[0])
	c.Add(11, all[0])
	c.Add(20, all[1])
	if c.Post(99) || v.show(&s) != nil {
		t.Error("a completion queue without a vector is told of by one")
	}
	for range 3 {
		c.Post(10)
		c.Post(11)
		c.Post(20)
	}
	if raised := v.show(&s); !slices.Equal(raised, []int{0, 1}) || s.Raised != 2 {
		t.Errorf("raised %v, %d in all", raised, s.Raised)
	}
	if raised := v.show(&s); raised != nil {
		t.Errorf("raised %v for nothing", raised)
	}
	if got := v.take(t, 1); !slices.Equal(got, []uint32{20}) {
		t.Errorf("events of %v", got)
	}
	c.Post(10) // waits to be taken
	c.Post(20)
	if raised := v.show(&s); !slices.Equal(raised, []int{1}) {
		t.Errorf("raised %v", raised)
	}
	if a, b := v.take(t, 0), v.take(t, 1); !slices.Equal(a, []uint32{10, 11}) || !slices.Equal(b, []uint32{20}) {
		t.Errorf("events of %v and %v", a, b)
	}
	c.Post(11)
	s.Drop(all[:1]) // its driver leaves
	c.Post(20)
	v.show(&s)
	if a, b := v.take(t, 0), v.take(t, 1); a != nil || !slices.Equal(b, []uint32{20}) {
		t.Errorf("events of %v and %v", a, b)
	}
}

// TestAnImpossibleConsumerIndexIsReportedForItsVector checks that an impossible consumer index is
// reported for its vector.
func TestAnImpossibleConsumerIndexIsReportedForItsVector(t *testing.T) {
	v := newVectors(2)
	var s EventQueues
	all := s.Open(v, v)
	var c CQEvents
	c.Add(10, all[1])
	c.Post(10)
	v.show(&s)
	if err := v.areas[1].Store32(offsetOfConsumer, 5); err != nil {
		t.Fatal(err)
	}
	if !c.Post(10) || !slices.Equal(v.broke, []int{1}) {
		t.Errorf("broke %v", v.broke)
	}
}

// offsetOfConsumer is the offset of the driver's index in an event queue.
const offsetOfConsumer = 64

// TestADriverThatTakesNoEventsGetsNoConnections checks that a driver that does not take its events
// gets no connections, which is counted and recorded as a violation. A driver that takes its events
// gets them.
func TestADriverThatTakesNoEventsGetsNoConnections(t *testing.T) {
	f, _ := newDevice(t, 0x01_1001)
	if f.Behind() {
		t.Error("nobody is behind")
	}
	o := newOutbox()
	f.driver = &Binding{Channel: boxed{o}}
	for n := range uint32(maxBehind + 1) {
		if behind := f.Behind(); behind != (n == maxBehind) {
			t.Errorf("behind with %d events: %v", n, behind)
		}
		o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: n})
	}
	if v, ok := f.violations.Newest(0); f.refusedBehind != 1 || !ok || abi.Clause(v.Clause) != abi.DRV205 {
		t.Errorf("%d connections were refused, %+v", f.refusedBehind, v)
	}
}

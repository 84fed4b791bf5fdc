package fair

import "github.com/falcon-vnic/vnic/internal/list"

// Round holds the flows that have something to send.
type Round[T any] struct {
	Quantum int // cost that a visit adds; about the largest cost of a turn, or less

	express, others list.List[Flow[T]]
}

// Flow is one participant of a round. Its zero value has weight 1 and is in no round.
type Flow[T any] struct {
	Weight int // 0 means 1

	node    list.Node[Flow[T]]
	of      *T
	deficit int
}

// Empty reports whether no flow has something to send.
func (r *Round[T]) Empty() bool { return r.express.Empty() && r.others.Empty() }

// Urgent reports whether the next turn belongs to an express flow.
func (r *Round[T]) Urgent() bool { return !r.express.Empty() }

// Enter puts f, the flow of v, at the end of the express list or of the others. A flow that is in
// the round already stays where it is.
func (r *Round[T]) Enter(f *Flow[T], v *T, express bool) {
	if f.of != v {
		f.of = v
	}
	r.list(express).PushBack(&f.node, f)
}

func (r *Round[T]) list(express bool) *list.List[Flow[T]] {
	if express {
		return &r.express
	}
	return &r.others
}

// Next returns the owner of the flow whose turn it is, nil if there is none. The flow stays in the
// round: the caller must call Settle or Leave.
func (r *Round[T]) Next() *T {
	l := &r.express
	if l.Empty() {
		l = &r.others
	}
	f := l.First()
	if f == nil {
		return nil
	}
	if f.deficit <= 0 {
		f = r.turn(l)
	}
	return f.of
}

// turn adds quanta to the flows of l in order, until one has a deficit above 0, and returns that
// flow.
func (r *Round[T]) turn(l *list.List[Flow[T]]) *Flow[T] {
	for {
		f := l.First()
		if f.deficit += max(f.Weight, 1) * r.Quantum; f.deficit > 0 {
			return f
		}
		f.node.MoveBack()
	}
}

// Charge subtracts what a flow cost in its turn.
func (f *Flow[T]) Charge(cost int) { f.deficit -= cost }

// Left reports whether the flow's turn may continue.
func (f *Flow[T]) Left() bool { return f.deficit > 0 }

// Settle ends a turn. The flow leaves if it has nothing more to send, and goes to the end if its
// deficit is used up. Otherwise it stays in front, unless it moves between express and the others.
func (r *Round[T]) Settle(f *Flow[T], more, express bool) {
	if l := r.list(express); !more || f.deficit <= 0 || l != f.node.On() {
		r.move(f, more, l)
	}
}

func (r *Round[T]) move(f *Flow[T], more bool, l *list.List[Flow[T]]) {
	switch {
	case !more:
		f.node.Remove()
		f.deficit = min(f.deficit, 0)
	case l != f.node.On():
		f.node.Remove()
		l.PushBack(&f.node, f)
	default:
		f.node.MoveBack()
	}
}

// Leave removes the flow from the round until something enters it again. It keeps its deficit.
func (f *Flow[T]) Leave() { f.node.Remove() }

// Waits reports whether the flow is in the round.
func (f *Flow[T]) Waits() bool { return f.node.On() != nil }

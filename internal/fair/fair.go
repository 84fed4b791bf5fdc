package fair

import "github.com/falcon-vnic/vnic/internal/list"

// Round is the flows that have something to send.
type Round[T any] struct {
	Quantum int // of cost; the largest cost of a turn, or less

	express, others list.List[Flow[T]]
}

// Flow is one part in a round. Its zero value has weight 1 and is in no round.
type Flow[T any] struct {
	Weight int // 0 is 1

	node    list.Node[Flow[T]]
	of      *T
	deficit int
}

// Empty reports whether no flow has something to send.
func (r *Round[T]) Empty() bool { return r.express.Empty() && r.others.Empty() }

// Urgent reports whether the next turn is that of an express flow.
func (r *Round[T]) Urgent() bool { return !r.express.Empty() }

// Enter puts f, the flow of v, at the end of the express list or of the others. One that is in the
// round already stays where it is.
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

// Next returns whose turn it is, nil if there is none. The flow stays in the round: Settle must
// follow, or Leave.
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

// turn gives the first flow of l that owes for less than a turn its quantum.
func (r *Round[T]) turn(l *list.List[Flow[T]]) *Flow[T] {
	for {
		f := l.First()
		if f.deficit += max(f.Weight, 1) * r.Quantum; f.deficit > 0 {
			return f
		}
		f.node.MoveBack()
	}
}

// Charge books what a flow cost in its turn.
func (f *Flow[T]) Charge(cost int) { f.deficit -= cost }

// Left reports whether the flow's turn may go on.
func (f *Flow[T]) Left() bool { return f.deficit > 0 }

// Settle ends a turn. The flow leaves when it has nothing more, goes to the end when its deficit is
// used up, and else stays in front, unless it moved between express and the others.
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

// Leave takes the flow out of the round, for something else to bring it back. It keeps its deficit.
func (f *Flow[T]) Leave() { f.node.Remove() }

// Waits reports whether the flow is in the round.
func (f *Flow[T]) Waits() bool { return f.node.On() != nil }

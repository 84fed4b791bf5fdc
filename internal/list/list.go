package list

// List is a doubly linked list. It must not be copied while something is in it.
type List[T any] struct{ head *Node[T] } // one pointer: thousands of connections have several lists

// Node is a place in one list.
type Node[T any] struct {
	next *Node[T] // nil: the last
	prev *Node[T] // of the first: the last
	on   *List[T] // nil: in none
	of   *T       // set for good the first time
}

// Empty reports whether nothing is in the list.
func (l *List[T]) Empty() bool { return l.head == nil }

// First returns what is first, nil if the list is empty.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

// Last returns what is last, nil if the list is empty.
func (l *List[T]) Last() *T {
	if l.head == nil {
		return nil
	}
	return l.head.prev.of
}

func (n *Node[T]) enter(l *List[T], v *T) {
	n.on = l
	if n.of != v { // a comparison costs less than to write a pointer
		n.of = v
	}
}

// PushBack puts n, the node of v, at the end. One that is in a list already stays where it is.
func (l *List[T]) PushBack(n *Node[T], v *T) {
	if n.on != nil {
		return
	}
	n.enter(l, v)
	if l.head == nil {
		l.head, n.prev = n, n
		return
	}
	last := l.head.prev
	n.prev, last.next, l.head.prev = last, n, n
}

// PushFront is PushBack at the other end.
func (l *List[T]) PushFront(n *Node[T], v *T) {
	if n.on != nil {
		return
	}
	n.enter(l, v)
	n.next, n.prev = l.head, n
	if l.head != nil {
		n.prev, l.head.prev = l.head.prev, n
	}
	l.head = n
}

// InsertAfter puts n, the node of v, behind another one, which is in a list. If n is in a list
// already it stays where it is.
func (n *Node[T]) InsertAfter(at *Node[T], v *T) {
	if n.on != nil {
		return
	}
	if at.next == nil {
		at.on.PushBack(n, v)
		return
	}
	n.enter(at.on, v)
	n.next, n.prev = at.next, at
	at.next.prev, at.next = n, n
}

// Remove takes n out of its list. It may be in none.
func (n *Node[T]) Remove() {
	l := n.on
	if l == nil {
		return
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.head.prev = n.prev
	}
	if n == l.head {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	n.on, n.next, n.prev = nil, nil, nil
}

// MoveBack puts n, which is in a list, at its end.
func (n *Node[T]) MoveBack() {
	l := n.on
	switch {
	case n.next == nil: // it is there
	case n == l.head:
		l.head, n.prev.next, n.next = n.next, n, nil
	default:
		n.Remove()
		l.PushBack(n, n.of)
	}
}

// On is the list that n is in, nil if it is in none.
func (n *Node[T]) On() *List[T] { return n.on }

// Next returns what is behind n in its list, nil if it is the last or in no list.
func (n *Node[T]) Next() *T {
	if n.next == nil {
		return nil
	}
	return n.next.of
}

// Prev returns what is in front of n in its list, nil if it is the first or in no list.
func (n *Node[T]) Prev() *T {
	if n.on == nil || n == n.on.head {
		return nil
	}
	return n.prev.of
}

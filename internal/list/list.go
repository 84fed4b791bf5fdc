package list

// List is a doubly linked list. It must not be copied while it is not empty.
type List[T any] struct{ head *Node[T] } // one pointer: thousands of connections have several lists

// Node links a value into one list.
type Node[T any] struct {
	next *Node[T] // nil: the last node
	prev *Node[T] // of the first node: the last
	on   *List[T] // nil: in no list
	of   *T       // the value; set once and never cleared
}

// Empty reports whether the list is empty.
func (l *List[T]) Empty() bool { return l.head == nil }

// First returns the first value, nil if the list is empty.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

// Last returns the last value, nil if the list is empty.
func (l *List[T]) Last() *T {
	if l.head == nil {
		return nil
	}
	return l.head.prev.of
}

func (n *Node[T]) enter(l *List[T], v *T) {
	n.on = l
	if n.of != v { // a comparison costs less than writing a pointer
		n.of = v
	}
}

// PushBack appends n, the node of v. A node that is in a list already stays where it is.
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

// PushFront puts n, the node of v, at the front. A node that is in a list already stays where it
// is.
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

// InsertAfter inserts n, the node of v, after another node, which must be in a list. If n is in a
// list already, it stays where it is.
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

// Remove removes n from its list, if it is in one.
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

// MoveBack moves n, which must be in a list, to its end.
func (n *Node[T]) MoveBack() {
	l := n.on
	switch {
	case n.next == nil: // it is at the end
	case n == l.head:
		l.head, n.prev.next, n.next = n.next, n, nil
	default:
		n.Remove()
		l.PushBack(n, n.of)
	}
}

// On returns the list that n is in, nil if it is in none.
func (n *Node[T]) On() *List[T] { return n.on }

// Next returns the value after n in its list, nil if n is the last or in no list.
func (n *Node[T]) Next() *T {
	if n.next == nil {
		return nil
	}
	return n.next.of
}

// Prev returns the value before n in its list, nil if n is the first or in no list.
func (n *Node[T]) Prev() *T {
	if n.on == nil || n == n.on.head {
		return nil
	}
	return n.prev.of
}

package rdma

// list is a queue of QPs or links, linked through themselves, so that queueing never allocates.
type list[T any] struct{ head, tail *node[T] }

// node is a place in one list.
type node[T any] struct {
	of         *T
	prev, next *node[T]
	on         *list[T]
}

// push appends l, unless it is in the list already.
func (s *list[T]) push(l *node[T]) {
	if l.on != nil {
		return
	}
	l.on, l.prev, l.next = s, s.tail, nil
	if s.tail != nil {
		s.tail.next = l
	} else {
		s.head = l
	}
	s.tail = l
}

// remove takes l out of whatever list it is in.
func (l *node[T]) remove() {
	s := l.on
	if s == nil {
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		s.head = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		s.tail = l.prev
	}
	l.on, l.prev, l.next = nil, nil, nil
}

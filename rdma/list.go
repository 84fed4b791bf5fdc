package rdma

// list is a queue of QPs linked through the QPs themselves, so that queueing never allocates.
type list struct{ head, tail *link }

// link is a QP's place in one list.
type link struct {
	qp         *QP
	prev, next *link
	on         *list
}

// push appends l, unless it is in the list already.
func (s *list) push(l *link) {
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
func (l *link) remove() {
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

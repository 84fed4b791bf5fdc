package guestlib

import "sync"

// table maps numbers to objects of one kind. The zero value is an empty table.
type table[T comparable] struct {
	mu   sync.Mutex
	list map[uint32]T
}

func (t *table[T]) add(n uint32, object T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list == nil {
		t.list = map[uint32]T{}
	}
	t.list[n] = object
}

// get returns the object with number n, or the zero value if there is none.
func (t *table[T]) get(n uint32) T {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[n]
}

// remove removes an object, unless another object has its number by now.
func (t *table[T]) remove(n uint32, object T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[n] == object {
		delete(t.list, n)
	}
}

// each calls f, which must not use the table, for every object.
func (t *table[T]) each(f func(T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, object := range t.list {
		f(object)
	}
}

// drain removes all objects and calls f for each.
func (t *table[T]) drain(f func(T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, object := range t.list {
		f(object)
	}
	clear(t.list)
}

package pool

// Pool holds unused objects. The object that was returned last is reused first, so that thousands
// of owners work with the same few objects, which are in the processor's cache. Its zero value is
// ready.
type Pool[T any] struct{ free []*T }

// Get returns an object in the state in which it was returned, or a new one.
func (p *Pool[T]) Get() *T {
	n := len(p.free) - 1
	if n < 0 {
		return new(T)
	}
	x := p.free[n]
	p.free = p.free[:n]
	return x
}

// Put returns x to the pool.
func (p *Pool[T]) Put(x *T) { p.free = append(p.free, x) }

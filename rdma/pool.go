package rdma

// pool holds objects nobody uses. What was given back last is taken first: QPs by the thousand work
// with the same few objects, which are in the processor's cache, instead of each with its own. Its
// size is bounded by what its users may hold at a time.
type pool[T any] struct{ free []*T }

func (p *pool[T]) get() *T {
	n := len(p.free) - 1
	if n < 0 {
		return new(T)
	}
	x := p.free[n]
	p.free = p.free[:n]
	return x
}

func (p *pool[T]) put(x *T) { p.free = append(p.free, x) }

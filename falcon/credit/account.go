package credit

// account is what a node has of one counter.
type account struct {
	limit     uint32
	inUse     uint32 // by the node's own subtree
	charged   uint32 // inUse, or what guarantees set aside where that is more: what counts against limit
	guarantee uint32
}

// above is what the parent is charged.
func (a *account) above() uint32 { return max(a.guarantee, a.charged) }

// spare is how much of the limit is left.
func (a *account) spare() uint32 { return max(a.limit, a.charged) - a.charged }

// fits tells whether there is room for v more.
func (a *account) fits(v uint32) bool { return a.charged <= a.limit && v <= a.limit-a.charged }

// charge counts v, of which the guarantee of a level below does not cover rise. It returns what of
// that this level's guarantee does not cover.
func (a *account) charge(v, rise uint32) uint32 {
	was := a.above()
	a.inUse += v
	a.charged += rise
	return a.above() - was
}

// refund undoes charge.
func (a *account) refund(v, fall uint32) uint32 {
	was := a.above()
	a.inUse -= v
	a.charged -= fall
	return was - a.above()
}

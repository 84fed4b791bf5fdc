package credit

// account holds the values of one counter of a node.
type account struct {
	limit     uint32
	inUse     uint32 // by the node's own subtree
	charged   uint32 // what counts against limit: inUse, or what guarantees below set aside if that is more
	guarantee uint32
}

// above returns what the parent is charged for this node.
func (a *account) above() uint32 { return max(a.guarantee, a.charged) }

// spare returns how much of the limit is left.
func (a *account) spare() uint32 { return max(a.limit, a.charged) - a.charged }

// fits reports whether there is room for v more.
func (a *account) fits(v uint32) bool { return a.charged <= a.limit && v <= a.limit-a.charged }

// charge adds v, of which rise is not covered by a guarantee of a level below. It returns the part
// of rise that this level's guarantee does not cover.
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

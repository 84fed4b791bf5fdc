package cc

// Target returns FabricDelayTarget of Falcon §10.3.4 in FU for a window of fcwnd packets, so that
// an observer can compare the delay that it sees with the target of Swift.
func (w *Swift) Target(fcwnd float64, hops uint8) uint32 {
	return w.target(w.p.BaseDelayTarget, fcwnd, hops)
}

package falcon

// Stats returns the counters. They change with the next call of the engine.
func (e *Engine) Stats() *Stats {
	s := &e.stats
	s.Conns, s.TxContexts, s.RxContexts, s.RxCells = e.conns.n, e.contexts.txns, e.contexts.rxs, e.contexts.cells.inUse
	return s
}

// Info returns a snapshot of the connection.
func (c *Conn) Info() ConnInfo {
	return ConnInfo{
		Fcwnd: float64(c.cc.Fcwnd) / 1024, Ncwnd: c.cc.Ncwnd, RTT: fromFU(c.cc.RTT), RTO: fromFU(c.cc.RTO), Delay: fromFU(c.cc.Delay),
		Outstanding:      int(c.nextRSN - c.baseRSN),
		RequestsInFlight: c.reqTx.next - c.reqTx.base, DataInFlight: c.dataTx.next - c.dataTx.base,
		DelayTarget: fromFU(c.cc.BaseDelay), LongPath: c.longPath.told,
		Retransmits: c.retransmits, WaitingForOrder: int(c.cells), TargetTransaction: int(c.requests + c.responses), Xoff: c.waiting,
	}
}

package falcon

// Names of states, as in the tables of Falcon §8.4.1 and §8.5.1.
var txnStates = [...]string{
	pullReqUlpRx: "PullReqUlpRx", pullReqTx: "PullReqTx", pullReqAckd: "PullReqAckd", pullDataRx: "PullDataRx", pullDataUlpTx: "PullDataUlpTx",
	pushReqUlpRx: "PushReqUlpRx", pushDataTx: "PushDataTx", pushDataAckd: "PushDataAckd", pushCplTx: "PushCplTx",
	pullDataUlpRx: "PullDataUlpRx", pullDataTx: "PullDataTx", pullDataAckd: "PullDataAckd",
}

// Transaction returns a function that returns the state of an initiator's transaction, in the end
// "over"; nil if there is no such transaction.
func (c *Conn) Transaction(rsn uint32) func() string {
	return c.initiator.txns.At(c.initiator.base, rsn).stateName()
}

// Response does what Transaction does, for the response to a pull that waits for its turn.
func (c *Conn) Response(rsn uint32) func() string {
	for t := c.tx.firstUnsent(TxnPullData); t != nil; t = t.place.Next() {
		if t.rsn == rsn {
			return t.stateName()
		}
	}
	return nil
}

func (t *txn) stateName() func() string {
	if t == nil {
		return nil
	}
	return func() string {
		if t.conn == nil {
			return "over"
		}
		return txnStates[t.state]
	}
}

// TargetState returns the state of a request at the target, "" if there is none. A request whose
// event was not taken yet does not count as delivered.
func (c *Conn) TargetState(rsn uint32) string {
	req := c.target.pending.At(c.target.base, rsn)
	switch {
	case req == nil:
		return ""
	case req == doneRequest:
		return "answered"
	case req.state == requestNotReady:
		return "not ready"
	case req.state == requestRefused:
		return "refused"
	case req.state == requestWithULP && req.push:
		return "PushReqUlpTx"
	case req.state == requestWithULP:
		return "PullReqUlpTx"
	case req.push:
		return "PushDataRx"
	}
	return "PullReqRx"
}

// Shares returns how many functions have a share of the engine.
func (e *Engine) Shares() int { return len(e.schedule.shares) }

// Weights returns how many functions have their own weight.
func (e *Engine) Weights() int { return len(e.schedule.weights) }

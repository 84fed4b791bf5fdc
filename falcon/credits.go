package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// credits charges a connection's node of the credit tree for what its transactions hold.
type credits struct {
	node *credit.Node // nil: unlimited
	e    *Engine
}

func (cr *credits) take(cost *credit.Cost) bool { return cr.node == nil || cr.node.Take(cost) }

// retake takes credits for a request that was refused before.
func (cr *credits) retake(cost *credit.Cost) bool { return cr.node == nil || cr.node.Retry(cost) }

// release gives cost back and clears it. Others may wait for these credits.
func (cr *credits) release(cost *credit.Cost) {
	if *cost == (credit.Cost{}) {
		return
	}
	cr.giveBack(cost)
	*cost = credit.Cost{}
	cr.e.waiting.recheck = true
}

func (cr *credits) giveBack(cost *credit.Cost) {
	if cr.node != nil && cr.node.Return(cost) != nil {
		cr.e.stats.CreditErrors++
	}
}

func (cr *credits) takeOne(i credit.Counter) bool {
	return cr.node == nil || cr.node.TakeOne(i, false)
}

func (cr *credits) returnOne(i credit.Counter) {
	if cr.node != nil && !cr.node.ReturnOne(i) {
		cr.e.stats.CreditErrors++
	}
}

// takeCells takes credits for n cells, or for none.
func (cr *credits) takeCells(n int) bool {
	for i := range n {
		if !cr.takeOne(credit.NetBufRx) {
			cr.returnCells(i)
			return false
		}
	}
	return true
}

func (cr *credits) returnCells(n int) {
	for range n {
		cr.returnOne(credit.NetBufRx)
	}
}

// aboveLimit reports whether cost is above a limit, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (cr *credits) aboveLimit(cost *credit.Cost) bool {
	return cr.node != nil && !cr.node.Possible(cost)
}

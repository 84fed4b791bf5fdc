// Package fair is the one fair scheduler of the protocol rooms: deficit round robin (Shreedhar and
// Varghese 1995) between flows, by weight and by cost, whatever a flow consists of.
//
//	Round ─▶ express: f7                   those within what is guaranteed to them go first
//	      ─▶ others:  f1 ─▶ f2 ─▶ f3       each visit adds Quantum, times the weight, to the flow's deficit,
//	                                       each turn takes away what it cost
//
//	Enter(f) ─▶ Next() ─▶ its turn: f.Charge(cost) … ─▶ Settle(f, more) ─▶ Next() …
//
// A flow is in the round while it has something to send. When it leaves, the rest of its deficit is
// lost, but a debt remains. The caller must limit the express list to what is guaranteed, so that
// the other flows lose nothing of their own.
//
// A Round and its flows belong to one goroutine. Everything is O(1) and allocates nothing. After a
// turn that costs more than a quantum a flow waits for as many rounds as it owes.
package fair

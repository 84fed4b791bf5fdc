// Package falcon is a Falcon transport engine by specification 0.9: transactions (§8), packet
// delivery (§9) and the application of congestion control (§10, package cc). It is sans-I/O: time,
// packets and buffers are arguments, and it uses no goroutines and no sockets. So the same code
// runs in a NIC and in a seeded simulation.
//
//	        ULP (rdma)                                     ULP
//	Push, Pull   RespondPull, AckPush …          ▲ Next: EvPush, EvPull, EvPushDone, EvPullDone …
//	─────┼──────────┼────────────────────────────┼───────────────────────────────────────────
//	 initiator.go  answer.go   transactions, credits          initiator.go, target.go: RSN order
//	     │          │                            ▲
//	 schedule.go   fair between classes, functions and connections; sender.go: fcwnd, ncwnd, pacing
//	     │                                       │ target.go, flight.go, recovery.go
//	 sender.go header, Fill by the ULP, PSN, timer  │ window.go: receive windows, duplicates
//	─────┼───────────────────────────────────────┼───────────────────────────────────────────
//	     ▼ sender.go                             │ receive.go  congestion.go  engine.go ◀ Advance
//	          packets, to be sealed         packets, opened and guarded
//
// A connection is made of layers. Each is a type that embeds the layer below it, so its methods can
// call their own layer and those below by name, and a call by name to a layer above does not
// compile. The compiler does not prevent a call to a layer above through a *Conn, which self, a txn
// or an rxTxn gives. Timers and the waiting lists of the engine make such calls:
//
//	Engine, Conn   what the owner calls: engine, conn, receive, answer, stats
//	receiver       processes the packets of the peer: receive
//	sender         chooses and writes the next packet: sender, receiver
//	transactions   starts and answers transactions: initiator, answer, target, admit
//	delivery       tracks packets in flight and their rate: flight, recovery, congestion
//	outcome        completes and delivers in RSN order: initiator, target, admit, conn
//	state          shared by the layers: what waits to be sent, contexts, credits: receiver, sender,
//	               schedule, contexts
//	               values: conn, txn, event, window, profile
//
// # Driving an engine
//
// For every batch: Receive each packet, then take all events with Next and let the ULP answer (it
// may call any method of Conn while doing so), then call Transmit until it returns 0, then park
// until Deadline and call Advance. Before parking for long, FlushAcks sends what is still
// coalesced. Payload of received packets is delivered in place: drain Next before their buffers are
// reused. Only payload that must wait for its turn is copied, into a bounded pool of cells.
//
// # Transactions
//
// An initiator's transaction is a txn; a peer's request is an rxTxn until the ULP answers. States
// are those of §8.4.1 and §8.5.1:
//
//	push:  PushReqUlpRx ─Transmit▶ PushDataTx ─ACK▶ PushDataAckd ─RSN order▶ PushCplTx
//	pull:  PullReqUlpRx ─Transmit▶ PullReqTx ─ACK▶ PullReqAckd ─Pull Data▶ PullDataRx ─RSN order▶ PullDataUlpTx
//	                         └────────── Pull Data (acknowledges too) ─────────▲
//	target: waiting ─RSN order▶ queued ─Next▶ with the ULP ─AckPush, RespondPull▶ done
//	            ▲                                 │ NackPush(RNR), RNRPull ▶ not ready ─retransmission or timer▶ queued
//	            └── held behind a not ready one   └ NackPush(CIE, NRE, CID) ▶ refused ─Resync▶ done
//
// A packet that is not acknowledged is retransmitted with the same PSN. When that has failed too
// often, or the target refused it, a Resync replaces it and fills the hole. When the Resync is not
// acknowledged, the connection ends (§11).
//
// # Congestion control
//
// Acknowledgements and timeouts raise events for the Rate Update Engine (package cc/rue). Its
// results set the windows, the gap between packets and the retransmission timeout of the
// connection; the timeout holds for packets in flight too. In the software profile it answers at
// once. In the hardware profile events and results pass through bounded queues and take time.
//
// # Ownership
//
// An Engine and its Conns belong to one goroutine. Events are only appended to the queue that Next
// reads, so there is no re-entry. The only call into the ULP is Fill, which is made while a packet
// is written and must not call back. Contexts, cells and events are pooled: in the steady state
// nothing is allocated per packet. The state that a peer can cause is bounded per connection by the
// windows and Profile.MaxTxn, and in total by Config.
package falcon

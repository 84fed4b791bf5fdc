// Package falcon is a Falcon transport engine by specification 0.9: transactions (§8), packet
// delivery (§9) and the application of congestion control (§10, package cc). It is sans-I/O: time,
// packets and buffers are arguments, and it uses no goroutines and no sockets. So the same code
// runs in a NIC and in a seeded simulation.
//
//	                     ULP (rdma)                                 ULP
//	  Push, Pull                        AckPush, RespondPull …      ▲ Next: EvPush, EvPull,
//	─────│────────────────────────────────────│─────────────────────│─ EvPushDone, EvPullDone …
//	     ▼                                    ▼                     │
//	 initiator ──requests──▶ tx ◀──responses── target ──in RSN order┤
//	     ▲                   │                 ▲                    │
//	     │              Transmit               │ requests           │
//	     │                   ▼                 │                    │
//	     └──acknowledged── flight ◀──ACKs── Receive ──▶ rx          │
//	     │                   ▲  losses, RTO    │ pull data          │
//	     │                   cc                └─▶ initiator ───────┘
//	─────┴───────────────────────────────────────────────────────────────────────────
//	     packets, to be sealed            packets, opened and guarded
//
// # A connection
//
// A Conn consists of parts. Each is a struct with its own state and methods, in a named field, and
// has the parts that it calls by name: tgt.rx.coalesce, ini.flight.resync.
//
//	initiator  the transactions that this side began: credits, RSN order, timeout   initiator.go
//	target     the peer's requests: delivery in RSN order, holds, what is refused    target.go, admit.go, answer.go
//	tx         what waits to be sent: which packet is next, pacing                   sender.go
//	flight     what was sent and not acknowledged: windows, loss, probes,            flight.go, recovery.go,
//	           congestion control with its events to the RUE                         congestion.go
//	rx         what arrived: windows, coalesced acknowledgements, NACKs              receiver.go
//	credits    the connection's node of the credit tree                              credits.go
//
//	tx ──▶ flight ◀──▶ initiator ──▶ rx ◀── target ◀── flight
//
// Conn's own methods do what takes several parts: writing a packet (sender.go), receiving an
// acknowledgement (receive.go), closing (conn.go). The engine has what connections share: scheduler
// (schedule.go), memory (contexts.go), timers and events (engine.go), and the connections that wait
// for credits (initiator.go).
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
// An initiator's transaction is a txn. A peer's request is a request until the ULP answers; the
// response to a pull is a txn again. States are those of §8.4.1 and §8.5.1:
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
// # Ownership and concurrency
//
// An Engine and its Conns belong to one goroutine and have no locks. Events are only appended to the
// queue that Next reads, so there is no re-entry. The only call into the ULP is Fill, which is made
// while a packet is written and must not call back. Contexts, cells and events are pooled: in the
// steady state nothing is allocated per packet. The state that a peer can cause is bounded per
// connection by the windows and Profile.MaxTxn, and in total by Config.
package falcon

// Package falcon is the Falcon transport engine of the specification 0.9: transactions (§8), packet
// delivery (§9) and the application of congestion control (§10, package cc). It is sans-I/O: time,
// packets and buffers are arguments, it starts no goroutine and knows no socket, so the same code
// runs in a NIC and in a simulation under a seed.
//
//	        ULP (rdma)                                     ULP
//	Push, Pull   RespondPull, AckPush …          ▲ Next: EvPush, EvPull, EvPushDone, EvPullDone …
//	─────┼──────────┼────────────────────────────┼───────────────────────────────────────────
//	 initiator.go  answer.go   transactions, credits          complete.go, inorder.go: RSN order
//	     │          │                            ▲
//	 schedule.go   fair between classes, functions and connections; gate.go: fcwnd, ncwnd, pacing
//	     │                                       │ target.go, onack.go, onnack.go, onresync.go
//	 tx.go  header, Fill by the ULP, PSN, timer  │ window.go: receive windows, duplicates
//	─────┼───────────────────────────────────────┼───────────────────────────────────────────
//	     ▼ transmit.go                           │ rx.go       rue.go      expire.go ◀ Advance
//	          packets, to be sealed         packets, opened and guarded
//
// A connection is made of layers. Each is a type with its own state, which has the layer below it
// embedded; so a layer calls those below it, and the compiler refuses anything else:
//
//	Engine, Conn   what the owner calls: engine, open, rx, transmit, expire, inspect
//	receiver       what a packet of the peer does: onack, onnack, onresync, rx
//	sender         which packet may go, and its bytes: gate, tx, sendack, transmit
//	transactions   what the ULPs of both ends ask for: initiator, answer, target, waiting, reclaim
//	delivery       packets under way, and the rate they go at: flight, acked, rack, early, retransmit, rue
//	outcome        how transactions end, told in RSN order: complete, inorder, hold, admit, close
//	state          what the connections of an engine share, and what waits to be sent: acks, schedule,
//	               contexts, credits, lists
//	               values: conn, txn, rxtxn, cells, event, window, profile, stats, codes, time
//
// # Driving an engine
//
// For every batch: Receive each packet, then take all events with Next and let the ULP answer (it
// may call any method of Conn while doing so), then call Transmit until it returns 0, then park
// until Deadline and call Advance. Before parking for long, FlushAcks sends what is still
// coalesced. Payload of received packets is delivered in place: drain Next before their buffers are
// used again. Only payload that must wait for its turn is copied, into a counted pool of cells.
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
// A packet that is not acknowledged is retransmitted with its PSN; when that is hopeless, or the
// target refused it, a Resync takes its place and fills the hole; when the Resync is not
// acknowledged the connection ends (§11).
//
// # Congestion control
//
// Acknowledgements and timeouts raise events for the Rate Update Engine (package cc/rue); its
// results are the windows, the gap between packets and the retransmission timeout of the
// connection, also for packets in flight. In the software profile it answers at once; in the
// hardware profile events and results go through bounded queues and take time.
//
// # Ownership
//
// An Engine and its Conns belong to one goroutine. Upcalls only append to the queue Next reads, so
// there is no re-entry: Fill is the one call into the ULP, made while a packet is written, and it
// must not call back. Contexts, cells and events are pooled: in the steady state nothing is
// allocated per packet. All state a peer can cause is bounded per connection by the windows and
// Profile.MaxTxn, and over all by Config.
package falcon

// Package rue is the interface of the Rate Update Engine of Falcon §10.6: what the packet delivery
// sublayer reports to congestion control and what it gets back, in the binary formats of §10.6.2,
// and the policy that decides which events are reported (§10.6.1).
//
//	ACK, NACK, retransmission ─▶ Policy ─▶ Event ─▶ Queue ─▶ Process ─▶ Queue ─▶ Result ─▶ connection
//	                             P1, P2            64 bytes     │       64 bytes
//	                                                     cc.Algorithm
//
// The engine is stateless. An event carries the whole congestion state of its connection and the
// result carries it back, so a connection has at most one event at the engine. If the RUE answers
// at once (Immediate), the queues are omitted and Update is called directly. Both ways compute the
// same.
//
// Both formats are 512 bits. Fields follow each other in the order of the tables of §10.6.2.1 and
// §10.6.2.2 from the least significant bit of the first byte up, so that the generation bit is the
// last one written.
package rue

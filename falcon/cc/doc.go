// Package cc is the congestion control of Falcon §10 as pure functions of (state, event). Package
// rue below it is the interface by which the engine asks.
//
//	ACK, NACK, retransmission ──▶ Event ─▶ Algorithm.Update(&State) ─▶ Result{IPG, Repath}
//	                                             │
//	                              State: fcwnd, ncwnd, RTO, smoothed RTT and delay, time markers, PLB counters
//
// Times are Falcon units (FU) of 2^17 ps = 131.072 ns and wrap at 24 bits (Falcon §10.6.2.1);
// inter-packet gaps are traffic-shaper units (TU) of 512 ns. fcwnd is fixed point with 10 fraction
// bits, ncwnd an integer.
//
// An algorithm is one file: its parameters, their configuration keys with bounds and defaults, and
// what it computes. The file registers it by name (registry.go), and nothing else knows of it:
// falcon.cc.algorithm chooses it in a configuration, and a scenario's.
//
// State belongs to the interface, not to one algorithm: it is what Falcon §10.6.2.1 and §10.6.2.2
// have an event carry to a Rate Update Engine and a result bring back, field by field (package rue
// encodes it so), and the RUE of the specification keeps nothing of a connection. So an algorithm
// of a file here and one of an RUE outside get the same. Half of it is also the engine's: it sends
// by Fcwnd and Ncwnd, repeats by RTO and RTT, and shows Delay and BaseDelay. What is left for the
// algorithm alone, two markers, a direction and the counters of PLB (§10.4), are 14 bytes; as bytes
// without names they could not be encoded, and would take as much of the cache lines that a push
// touches.
//
// Nothing here allocates, reads a clock or keeps anything outside State; the engine owns the State
// of each connection. Where the 0.9 pseudo-code of §10.3 contradicts itself, docs/wire.md lists the
// reading this package follows.
package cc

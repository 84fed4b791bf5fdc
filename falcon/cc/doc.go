// Package cc implements the congestion control of Falcon §10 as pure functions of (state, event).
// Package rue below it is the interface that the engine calls.
//
//	ACK, NACK, retransmission ──▶ Event ─▶ Algorithm.Update(&State) ─▶ Result{IPG, Repath}
//	                                             │
//	                              State: fcwnd, ncwnd, RTO, smoothed RTT and delay, time markers, PLB counters
//
// Times are Falcon units (FU) of 2^17 ps = 131.072 ns and wrap at 24 bits (Falcon §10.6.2.1);
// inter-packet gaps are traffic-shaper units (TU) of 512 ns. fcwnd is fixed point with 10 fraction
// bits, ncwnd an integer.
//
// An algorithm is one file with its parameters, their configuration keys with bounds and defaults,
// and its computation. The file registers the algorithm by name (registry.go); no other code refers
// to it. falcon.cc.algorithm selects it in a configuration, and in a scenario.
//
// State belongs to the interface, not to one algorithm. Falcon §10.6.2.1 and §10.6.2.2 specify,
// field by field, what an event carries to a Rate Update Engine and what a result brings back
// (package rue encodes it so), and the RUE of the specification keeps no state of a connection. So
// an algorithm in a file here and one in an external RUE get the same State. The engine uses half
// of it too: it sends by Fcwnd and Ncwnd, retransmits by RTO and RTT, and shows Delay and
// BaseDelay. What is left for the algorithm alone is 14 bytes: two markers, a direction and the
// counters of PLB (§10.4). As bytes without names they could not be encoded, and they would take as
// much of the cache lines that a push touches.
//
// Nothing here allocates, reads a clock or keeps anything outside State. The engine owns the State
// of each connection. Where the 0.9 pseudo-code of §10.3 contradicts itself, docs/wire.md lists the
// reading that this package follows.
package cc

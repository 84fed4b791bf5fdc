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
// Nothing here allocates, reads a clock or keeps anything outside State; the engine owns the State
// of each connection. Where the 0.9 pseudo-code of §10.3 contradicts itself, docs/wire.md lists the
// reading this package follows.
package cc

// Package sim runs Falcon engines in virtual time over impaired links. Everything is a function of
// a seed: the same seed gives the same run, packet by packet.
//
//	Node 0: Engine, ULP ──▶ Link ──▶ Node 1: Engine, ULP
//	                    ◀── Link ◀──
//
// Link is the impairment model alone (loss, delay, jitter, reorder, duplicate, corrupt, mark, rate,
// down). It also serves live uplinks: time is an argument, and each decision is a function of the
// seed and the packet's index, so that a run replays whatever the timing.
//
// World joins two engines by two links and moves its clock from one event to the next. Packets
// carry their send time and a checksum in place of PSP, so corruption is detected and dropped as
// the ICV would.
//
// Network joins up to 1024 engines by a switch with an egress queue per port, for experiments with
// performance: hosts fetch packets at line rate, ports drop and mark, links lose, repeat and
// reorder, and the network knows of every packet whether the receiver had it already.
// Run turns a Scenario into a Result with it. Scenarios come from files in package scenario.
//
// A World or a Network and its parts belong to one goroutine.
package sim

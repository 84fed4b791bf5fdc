// Package sim runs Falcon engines in virtual time over impaired links. Everything is a function of
// a seed: the same seed gives the same run, packet by packet.
//
//	Node 0: Engine, ULP ──▶ Link ──▶ Node 1: Engine, ULP
//	                    ◀── Link ◀──
//
// Link is only the impairment model (loss, delay, jitter, reorder, duplicate, corrupt, mark, rate,
// down). It also serves live uplinks: time is an argument, and each decision depends only on the
// seed and the packet's index, so that a run can be replayed whatever the timing.
//
// World joins two engines by two links and moves its clock from one event to the next. Packets
// carry their send time and a checksum in place of PSP, so a corrupted packet is detected and
// dropped as the ICV would do.
//
// Network joins up to 1024 engines by a switch with an egress queue per port, for performance
// experiments. Hosts fetch packets at line rate, ports drop and mark, links lose, repeat and
// reorder. For every packet the network knows whether the receiver had it already. Run runs a
// Scenario in a Network and returns a Result. Package scenario reads scenarios from files.
//
// A World or a Network and its parts belong to one goroutine.
package sim

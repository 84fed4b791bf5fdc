// Package workload runs every operation in every size between a pair of functions and verifies
// every byte on the far side. The demo's guests run it. It is also a first test for new attachments
// and transports.
//
//	   first                                         second
//	driver ──connect, private data────────────────► server      connection 1
//	       ◄─accept: address and key of its memory──
//	  for each operation and size, in rounds:
//	       ──BEGIN operation, size, seed───────────►            prepares memory and receives
//	       ◄─READY──────────────────────────────────
//	       ══the operations, one at a time, timed══►
//	       ──CHECK─────────────────────────────────►            compares every byte
//	       ◄─VERDICT────────────────────────────────
//	       ──BYE───────────────────────────────────►
//	then both change roles                                      connection 2
//
// The control messages are SENDs of the same queue pair. Data is a pattern made from seed,
// operation, size and iteration, so both sides can compute it. Memory that must not change is
// filled with a canary and compared too. Offsets vary and are mostly odd. The driver compares the
// data of READs. Atomics follow a model that both sides compute.
//
// SENDs by datagrams, to a shared receive queue and to one of an XRC domain use their own queue
// pairs (services.go).
//
// Output is one JSON object per line; see Output.
package workload

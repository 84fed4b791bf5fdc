// Package workload drives a pair of functions through every operation and size and verifies every
// byte on the far side. It is the work of the demo's guests, and a first test of any new attachment
// or transport.
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
//	then both change places                                     connection 2
//
// The control messages are SENDs of the same queue pair. Data is a pattern made from seed,
// operation, size and iteration, so both sides know it without telling. What must not be touched is
// filled with a canary and compared too. Offsets vary and are mostly odd. READs are compared by the
// driver; atomics follow a model both sides know.
//
// SENDs by datagrams, to a shared receive queue and to one of an XRC domain go by queue pairs of
// their own (services.go).
//
// Output is one JSON object per line; see Line.
package workload

// Package perf measures a pair of functions as the programs of perftest (ib_write_bw, ib_write_lat
// and the rest) measure RDMA devices: the same tests, the same words, the same columns, so that
// figures can be laid side by side.
//
//	 client                                        server
//	   ──control connection: the test, its memory──►          adopts sizes, iterations and queue pairs of the client
//	   ◄─its memory──────────────────────────────────
//	   ══one connection per queue pair═════════════►
//	for each size:
//	   ◄─both ready─────────────────────────────────►          exchange of control messages
//	   ══the test══════════════════════════════════►
//	   ◄─what was measured──────────────────────────►
//
// What is measured, and from where to where:
//
//	write_lat, send_lat    half of a round trip: the message there, seen in memory or polled, and one of the same size back
//	read_lat, atomic_lat   from posting to the completion
//	*_bw                   from the first post to the last completion, TxDepth operations outstanding on each queue pair
//
// As perftest does, t_typical is the median, the two longest samples are left out, and a MB is 2^20
// bytes. BW peak is the best rate over up to 2·TxDepth successive messages of a queue pair, from
// posting the first to completing the last.
//
// SEND goes by datagrams too (datagram.go): what did not arrive is counted as lost. One end may be a
// program of perftest (perftest.go).
//
// Doorbells (doorbell.go) measures the device itself: doorbells, wake-ups and small WRITEs.
//
// All memory is allocated and all samples are kept in arrays made before the clock starts.
package perf

// Package perftest speaks what the programs of perftest (ib_write_bw and the like) say to each other
// over TCP before and after a test, as version 4.5 of them does, which calls itself 6.06. What they
// say in between depends on the test; package perf knows it.
//
//	client                                     server
//	  ├── version 16, page 4, line 4, MTU 2 ────▶│  each is answered with as many bytes
//	  ├── keys 108 ─────────────────────────────▶│  queue pair, PSN, key, address, GID: of both
//	  ├── keys, keys ───────────────────────────▶│  both are ready
//	  │            … the test …                  │
//	  ├── keys, report 5·8, keys, "done" ───────▶│
//
// Neither end tells the other its test, sizes or iterations.
package perftest

// Command perfguest is the init of guests in which Soft-RoCE and vnic are measured in turn, in the
// same two guests.
//
//	perfguest server|client IP/BITS PEER-IP PEER-GID RUNS
//	perfguest programs IP/BITS[+IP/BITS…] PROGRAM,ARGUMENT,…  …
//
// As the guest's child it gives eth0 its address and makes a Soft-RoCE device (rdma_rxe) on it.
// Each run measures that device by perftest's ib_write_bw and ib_write_lat, and vnic by `vnic guest
// perf`, with the same flags. The client prints their output; see Measurement.
//
// The second form runs programs one after another on a Soft-RoCE device, in a guest without vnic.
//
// It is a program of its own because it needs programs that no vnic guest needs, and because a real
// peer is measured by its own tools.
package main

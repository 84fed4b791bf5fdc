// Command perfguest is the init of the guests in which Soft-RoCE and vnic are measured side by
// side: the same two guests, in turn.
//
//	perfguest server|client IP/BITS PEER-IP PEER-GID RUNS
//	perfguest programs IP/BITS[+IP/BITS…] PROGRAM,ARGUMENT,…  …
//
// As the guest's child it gives eth0 its address, makes a Soft-RoCE device (rdma_rxe) on it, and
// for each run has perftest's ib_write_bw and ib_write_lat measure that, and `vnic guest perf` the
// vnic, with the same flags. The client prints what they print; see Line.
//
// The second form runs programs, one after the other, on a Soft-RoCE device alone: there is nothing
// of vnic's in that guest.
//
// It is a program of its own because it needs others that no vnic guest needs, and because a real
// peer is measured by its own tools.
package main

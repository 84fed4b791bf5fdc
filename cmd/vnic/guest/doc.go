// Package guest is the driver's side of a function: vnic guest, which runs programs on guestlib, and
// vnic conform.
//
//	guest.go    information and the workload       traffic.go  plain IP by iperf3
//	perf.go     bandwidth and latency (perftest)   verbs.go    programs of rdma-core, with the Linux driver
//	conform.go  the conformance kit
//
// A command opens its function for as long as it runs.
package guest

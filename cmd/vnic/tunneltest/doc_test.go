// Package tunneltest tests and measures plain IP through the tunnel and through ports, beside other
// tunnels and drivers.
//
//	namespace or testpmd ─ port ─▶ NIC ═ uplink: TAP or UDP ═▶ NIC ─▶ port ─ namespace or testpmd
//
// Benchmarks measure the tunnel beside wireguard-go, the kernel's VXLAN and a plain bridge, in turn,
// and ports in guests' memory with DPDK's testpmd. Hosts are network namespaces with a cable, a bridge
// or a router between them, so no test needs a guest. Each test has namespaces of its own, and removes
// them.
package tunneltest_test

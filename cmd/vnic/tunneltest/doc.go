// Package tunneltest tests and measures plain IP: through ports, through the tunnel between two NICs,
// and beside other tunnels and drivers.
//
//	namespace or testpmd ─ port ─▶ NIC ═ uplink: TAP or UDP ═▶ NIC ─▶ port ─ namespace or testpmd
//
// The tests are about what a guest's kernel and a network do to each other by way of NICs: TCP goes on
// while keys are replaced and a cable is pulled (twohosts_test.go), a router lowers the MTU
// (uplink_test.go), a congested path is left (paths_test.go), DPDK's frames arrive unchanged
// (testpmd_test.go). The benchmarks measure rates, latencies and processor time of the tunnel and of
// wireguard-go, the kernel's VXLAN and a plain bridge in turn, in one run on one machine, so that figures
// can be compared; ndr_test.go finds the highest rate at which next to nothing is lost.
//
// # Guests and hosts
//
// No test boots a guest. A host is a network namespace, and so is a guest: behind a veth and a bridge,
// with the function's MAC, as a virtio-net would be, or as the namespace into which the NIC puts its
// port. Where the port is in a guest's memory (vhost-user), testpmd is the guest. Two ways make them:
//
//   - newPairOfHosts: two hosts with a guest each, and between them what the test says: a bridge
//     (bridged) or a router (routed).
//   - newBoxes: two namespaces for clients and servers, and a bridge, on which one tunnel after the other
//     is built.
//
// # Who owns what
//
// Each test has namespaces, NICs, identities and a folder for sockets of its own, and removes them by
// t.Cleanup; whoever starts a program ends it, and programs die with the test. newBoxes and the
// benchmarks have their bridge in a namespace in which the test itself runs, so that nothing appears
// among the machine's own interfaces.
package tunneltest

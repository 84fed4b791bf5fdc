// Command vnic emulates Falcon-capable NICs for QEMU guests. The same program is the driver side
// inside the guests.
//
//	vnic run -c nic.yaml      one NIC: functions, RDMA, Falcon, PSP, uplink
//	vnic demo                 two NICs, two guests, every operation, one table
//	vnic qemu -c … --guest N  the QEMU line of a guest, printed or run
//	vnic image                makes what a guest boots: Debian's kernel and packages, this program
//	vnic wait -s SOCKET       waits until a NIC serves guests
//	vnic keys init            identities for the connection managers' mutual TLS
//	vnic show …               the state of a running NIC, over its control socket
//	vnic sim FILE             the transport in virtual time: a scenario, its table and plots
//	vnic guest …              the guest side: device information, workload
//
// Each command is a package here; cli has what they share.
//
// In a guest the same binary is /init: as process 1 it prepares the system and
// runs itself with the arguments of the kernel command line (qemu/guestinit).
package main

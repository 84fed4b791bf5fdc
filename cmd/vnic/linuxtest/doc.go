// Package linuxtest has the tests of Linux guests: the Linux driver (guestlib/linux), and RoCEv2 and
// iWARP with what Linux itself has.
//
//	guest: programs ─ rdma-core, provider ─ vnic.ko ── window or PCI function ──▶ NIC ─┐
//	                                                                                   │ fabric
//	guest: programs ─ rdma-core ─ rdma_rxe (Soft-RoCE) or siw ───── port ──▶ NIC ──────┘
//
// The files driver_*_test.go are about the driver: its interfaces, what it withstands, storage over
// it, how it is packaged, and how fast it is. The files roce_*_test.go connect functions of a NIC with
// Linux's Soft-RoCE, the files siw_*_test.go with siw, over iWARP; at our end is the driver or guestlib.
// uml_test.go has a guest of another kind, User Mode Linux, on a port in its memory.
//
// # Guests
//
// Nearly all are QEMU guests with Debian's kernel and a RAM disk that the test writes (qemu/image), so
// that nothing is installed and each begins from the same state. There are three ways to make one:
//
//   - driverImage: bash, rdma-core, perftest and the driver, built for that kernel. inDriverLab boots two
//     of them at two NICs; tests type into the shell at the console (driver_lab_test.go).
//   - stockGuest: no shell. Its init (qemu/perfguest) sets up Soft-RoCE and starts the programs that the
//     test asks for, over the network (perftest_test.go, roce_linux_test.go).
//   - a whole Debian on a disk (vnic image --disk), where packages and systemd are what is tested
//     (driver_disk_test.go, driver_packages_test.go).
//
// C programs that run in guests are in testdata and are compiled by the test. A test whose name begins
// with TestInside is no test by itself: it is our end of a connection, a process that another test
// starts, and kills.
//
// # Who owns what
//
// Each test has NICs, network namespaces, guests and temporary folders of its own. vnictest.MakeLab
// makes the two hosts, and ends their NICs and removes what they had when its function returns; the lab
// on top of it ends the guests before. Nothing is shared but the cache of kernels and packages
// (~/.cache/vnic), which `make fetch` fills, and the driver, which vnictest.MakeDriver builds in
// build/linux. A guest dies with the process of the test.
package linuxtest

// Package linuxtest tests the Linux driver (guestlib/linux), and RoCEv2 and iWARP with Linux, in guests.
//
//	guest: programs ─ rdma-core, provider ─ vnic.ko ── window or PCI function ──▶ NIC ─┐
//	                                                                                   │ fabric
//	guest: programs ─ rdma-core ─ rdma_rxe (Soft-RoCE) or siw ───── port ──▶ NIC ──────┘
//
// The files driver_*_test.go are about the driver: its interfaces, what it withstands, storage over
// it, and how it is packaged and measured. driver_lab_test.go has the guests and NICs that they
// share. The files roce_*_test.go connect guests of vnic with Linux's Soft-RoCE, by the driver and by
// guestlib, the files siw_*_test.go with siw, over iWARP. testdata holds C programs that run in the guests.
//
// Each test has NICs, guests and temporary folders of its own, and ends them.
package linuxtest_test

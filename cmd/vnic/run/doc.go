// Package run is vnic run, and the commands that wait for a NIC and upgrade it.
//
//	vnic run (supervise.go) ── sockets, QEMU's connections, TAPs (keep.go)
//	   │                       the configuration, until a reload or an upgrade (change.go)
//	   └── worker (worker.go) ── device.NIC, on what the supervisor keeps
//
// It alone imports both sides: it opens attachments and ports of package qemu (attach.go, ports.go)
// and passes them to package device.
package run

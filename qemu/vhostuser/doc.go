// Package vhostuser is the back-end half of the vhost-user conversation of one
// vhost-user-vsock-pci device.
//
//	QEMU (front end)                               this package (back end)
//	   │  header │ payload │ fds (SCM_RIGHTS)          │
//	   ├── GET_FEATURES, GET_PROTOCOL_FEATURES … ─────►│ State.Features …
//	   ├── GET_CONFIG ────────────────────────────────►│ Device.Config
//	   ├── SET_MEM_TABLE / ADD_MEM_REG / REM_MEM_REG ─►│ map → Device.SetMemory → unmap the old
//	   ├── SET_VRING_NUM, BASE, ADDR, CALL, KICK ─────►│ State.Vrings
//	   ├── SET_VRING_ENABLE 1 ────────────────────────►│ Device.StartVring
//	   └── GET_VRING_BASE ────────────────────────────►│ Device.StopVring, then the reply
//
// The conversation knows messages, file descriptors and State; what a ring does
// with its descriptors is the Device's business (package vring and package
// vsock). State is a plain value that survives JSON, so that a later supervisor
// can keep the conversation while the process that runs the rings is replaced.
//
// # Ownership and concurrency
//
// Serve runs the whole conversation in its caller's goroutine and calls the
// Device from there. It owns every descriptor the front end sent: a replaced
// descriptor is closed after the Device was told of its successor, and all are
// closed before Serve returns. Memory is mapped within a budget (package guestmem),
// or not at all for a Relay, which hands descriptors on. Mapped memory is unmapped only after
// Device.SetMemory returned, which is the Device's promise that nobody uses the
// old mapping any more.
//
// # Trust
//
// A front end is a QEMU we may not have started. Anything that cannot come from
// a correct front end (bad version, oversized or short messages, missing
// descriptors, overlapping regions, ring addresses outside guest memory) ends
// the conversation with an error that names the message and the value.
//
// Reference: QEMU docs/interop/vhost-user.rst (framing, protocol features,
// memory regions, ring states).
package vhostuser

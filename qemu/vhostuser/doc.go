// Package vhostuser is the back end of the vhost-user protocol, for devices of any kind: package
// qemu serves vsock devices and network ports with it.
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
// A Session handles messages, file descriptors and State; the Device runs the rings (package
// virtqueue, for packages vsock and vhostnet). State is a plain value that can be encoded as JSON.
// A Relay keeps QEMU's connection while the process that runs the rings is replaced.
//
// # Ownership and concurrency
//
// Serve handles all messages in its caller's goroutine and calls the Device from there. It owns
// every descriptor that the front end sent. It closes a replaced descriptor after it has given the
// new one to the Device, and closes all descriptors before it returns. It maps memory within a
// budget (package guestmem), or maps nothing for a Relay, which passes the descriptors on. It
// unmaps memory only after Device.SetMemory has returned: by returning, the Device promises that
// nothing uses the old mapping any more.
//
// # Trust
//
// A front end is a QEMU that somebody else may have started. Serve disconnects it if it sends
// something that no correct front end sends: a bad version, messages that are too long or too
// short, missing descriptors, overlapping regions, ring addresses outside guest memory. The error
// names the message and the value.
//
// Reference: QEMU docs/interop/vhost-user.rst (framing, protocol features,
// memory regions, ring states).
package vhostuser

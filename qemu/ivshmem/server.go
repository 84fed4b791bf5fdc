package ivshmem

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// Numbers of the client-server protocol.
const (
	protocolVersion = 0
	sharedMemory    = -1 // instead of a peer's number
	ourPeer         = 0  // this process; its eventfds are the doorbells
	guestPeer       = 1  // the guest, which has no other peer
)

// Introduce sends everything that QEMU needs to a QEMU that has just connected, and which waits for
// that. Nothing is sent after that; the connection only stays open to show when QEMU ends.
func (w *Window) Introduce(conn *net.UnixConn) error {
	type message struct {
		value int64
		fd    int
	}
	all := []message{
		{protocolVersion, eventfd.None},
		{guestPeer, eventfd.None},
		{sharedMemory, int(w.file.Fd())},
	}
	for _, fd := range w.bell {
		all = append(all, message{ourPeer, fd})
	}
	for _, fd := range w.vectors {
		all = append(all, message{guestPeer, fd})
	}
	for _, m := range all {
		var rights []byte
		if m.fd != eventfd.None {
			rights = unix.UnixRights(m.fd)
		}
		if _, _, err := conn.WriteMsgUnix(binary.LittleEndian.AppendUint64(nil, uint64(m.value)), rights, nil); err != nil {
			return fmt.Errorf("ivshmem: %w", err)
		}
	}
	return nil
}

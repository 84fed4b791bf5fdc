package tunneltest_test

import (
	"encoding/binary"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is struct mmsghdr of the kernel.
type message struct {
	unix.Msghdr
	sent uint32
}

// messages returns a packet n times, addressed to a neighbour behind a device, as sendMessages
// takes it.
func messages(n, device int, mac net.HardwareAddr, packet []byte) []message {
	to := &unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Protocol: binary.NativeEndian.Uint16([]byte{8, 0}), Ifindex: int32(device), Halen: uint8(len(mac))}
	copy(to.Addr[:], mac)
	data := &unix.Iovec{Base: unsafe.SliceData(packet), Len: uint64(len(packet))}
	list := make([]message, n)
	for i := range list {
		list[i].Msghdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(to)), Namelen: unix.SizeofSockaddrLinklayer, Iov: data, Iovlen: 1}
	}
	return list
}

// sendMessages returns how many the kernel took.
func sendMessages(fd int, list []message) int {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(len(list)), 0, 0, 0)
	if errno != 0 { // the device is full
		return 0
	}
	return int(n)
}

package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32 // bytes received or sent
}

const (
	nameLen     = unix.SizeofSockaddrInet6 // the longer kind
	sendControl = 48                       // TOS and segment size, each CMSG_SPACE(4)
	recvControl = 128                      // TOS, TTL, segment size, drops
)

// receiving holds the arguments of recvmmsg. They point into it, so it must not be copied.
type receiving struct {
	hdrs    [messages]mmsghdr
	iov     [messages]unix.Iovec
	names   [messages][nameLen]byte
	control [messages][recvControl]byte
}

func (r *receiving) init() {
	for i := range r.hdrs {
		h := &r.hdrs[i].hdr
		h.Name, h.Iov, h.Iovlen, h.Control = &r.names[i][0], &r.iov[i], 1, &r.control[i][0]
	}
}

// receive receives at most one datagram or superframe into each of bufs, behind headroom. The
// socket never blocks, so the Go scheduler is not informed.
func (r *receiving) receive(fd int, bufs [][]byte, headroom int) (n int, errno unix.Errno) {
	for i, b := range bufs {
		b = b[headroom:]
		r.iov[i].Base = unsafe.SliceData(b)
		r.iov[i].SetLen(len(b))
		h := &r.hdrs[i].hdr
		h.Namelen, h.Flags = nameLen, 0
		h.SetControllen(recvControl)
	}
	got, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.hdrs)), uintptr(len(bufs)), unix.MSG_DONTWAIT, 0, 0)
	for i := range bufs {
		r.iov[i].Base = nil // release the caller's buffers
	}
	if errno != 0 {
		return 0, errno
	}
	return int(got), 0
}

// message is what the kernel says of a datagram or superframe.
type message struct {
	from       netip.AddrPort
	class, ttl uint8
	length     int
	segment    int // bytes of each datagram of a superframe; 0: there is one
	lost       uint32
	cut        bool // it did not fit its buffer
}

// message describes the i-th message received.
func (r *receiving) message(i int) (m message) {
	h, name := &r.hdrs[i].hdr, &r.names[i]
	m.length, m.cut = int(r.hdrs[i].len), h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0
	port := binary.BigEndian.Uint16(name[2:])
	if binary.NativeEndian.Uint16(name[:]) == unix.AF_INET {
		m.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
	} else {
		m.from = netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])), port)
	}
	for b := r.control[i][:h.Controllen]; len(b) >= unix.SizeofCmsghdr; {
		length := int(binary.NativeEndian.Uint64(b))
		if length < unix.SizeofCmsghdr || length > len(b) {
			break
		}
		m.note(binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]), b[unix.SizeofCmsghdr:length])
		b = b[min((length+7)&^7, len(b)):]
	}
	return m
}

// note takes one control message.
func (m *message) note(level, kind uint32, data []byte) {
	var value uint32
	switch len(data) {
	case 0:
		return
	case 1: // TOS of IPv4
		value = uint32(data[0])
	default:
		value = binary.NativeEndian.Uint32(data)
	}
	switch {
	case level == unix.SOL_IP && kind == unix.IP_TOS, level == unix.SOL_IPV6 && kind == unix.IPV6_TCLASS:
		m.class = uint8(value)
	case level == unix.SOL_IP && kind == unix.IP_TTL, level == unix.SOL_IPV6 && kind == unix.IPV6_HOPLIMIT:
		m.ttl = uint8(value)
	case level == unix.SOL_UDP && kind == unix.UDP_GRO:
		m.segment = int(value)
	case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL:
		m.lost = value
	}
}

// sending holds the arguments of sendmmsg, like receiving.
type sending struct {
	v6      bool
	count   int    // messages prepared
	done    int    // of them sent
	used    int    // of iov
	supers  uint64 // superframes sent
	hdrs    [messages]mmsghdr
	frames  [messages]int // datagrams of each
	iov     [vectors]unix.Iovec
	names   [messages][nameLen]byte
	control [messages][sendControl]byte
}

func (s *sending) init(v6 bool) {
	s.v6 = v6
	for i := range s.hdrs {
		h := &s.hdrs[i].hdr
		h.Name, h.Control = &s.names[i][0], &s.control[i][0]
		family, level, kind := uint16(unix.AF_INET), uint32(unix.SOL_IP), uint32(unix.IP_TOS)
		h.Namelen = unix.SizeofSockaddrInet4
		if v6 {
			family, level, kind = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TCLASS
			h.Namelen = unix.SizeofSockaddrInet6
		}
		binary.NativeEndian.PutUint16(s.names[i][:], family)
		putControl(s.control[i][:], level, kind, 4)
		putControl(s.control[i][sendControl/2:], unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	}
}

func putControl(b []byte, level, kind uint32, n int) {
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(n)))
	binary.NativeEndian.PutUint32(b[8:], level)
	binary.NativeEndian.PutUint32(b[12:], kind)
}

func (s *sending) begin() { s.count, s.done, s.used = 0, 0, 0 }

// full reports whether no further message can be added.
func (s *sending) full() bool { return s.count == messages || s.used == vectors }

// room returns how many datagrams can be added.
func (s *sending) room() int { return vectors - s.used }

// add adds a message for frames of one flow, without copying their payloads.
func (s *sending) add(frames [][]byte, headroom int) {
	i, first := s.count, frames[0]
	h, name, control := &s.hdrs[i].hdr, &s.names[i], &s.control[i]
	udp := headroom - udpLen
	copy(name[2:4], first[udp+2:udp+4])
	class := first[ip4TOS]
	if s.v6 {
		copy(name[8:24], first[ip6Dst:udp])
		class = uint8(binary.BigEndian.Uint16(first[ipAt:]) >> 4)
	} else {
		copy(name[4:8], first[ip4Dst:udp])
	}
	binary.NativeEndian.PutUint32(control[unix.SizeofCmsghdr:], uint32(class))
	h.SetControllen(sendControl / 2)
	if len(frames) > 1 {
		binary.NativeEndian.PutUint16(control[sendControl/2+unix.SizeofCmsghdr:], uint16(len(first)-headroom))
		h.SetControllen(sendControl)
	}
	h.Iov = &s.iov[s.used]
	h.SetIovlen(len(frames))
	for _, f := range frames {
		b := f[headroom:]
		s.iov[s.used].Base = unsafe.SliceData(b)
		s.iov[s.used].SetLen(len(b))
		s.used++
	}
	s.frames[i] = len(frames)
	s.count++
}

// next returns how many datagrams the first message has that was not sent.
func (s *sending) next() int { return s.frames[s.done] }

// send sends the messages, and returns how many datagrams were sent: with fewer than all also why
// the next message was not.
func (s *sending) send(fd int) (frames int, errno unix.Errno) {
	for s.done < s.count {
		sent, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&s.hdrs[s.done])), uintptr(s.count-s.done), unix.MSG_DONTWAIT, 0, 0)
		if e != 0 {
			errno = e
			break
		}
		for range sent {
			frames += s.frames[s.done]
			if s.frames[s.done] > 1 {
				s.supers++
			}
			s.done++
		}
	}
	for i := range s.used {
		s.iov[i].Base = nil // release the caller's buffers
	}
	return frames, errno
}

package tap

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// A superframe stands for a run of UDP datagrams that have equal Ethernet, IP and UDP headers and
// payloads of one length; only the last payload may be shorter:
//
//	Ethernet | IP | UDP │ payload 1 │ payload 2 │ … │ payload n
//
// The lengths in its headers are those of the whole. Its UDP checksum is left to the kernel, which
// needs the sum of the pseudo header in its place. The kernel passes it through bridges and veths
// as one packet, and cuts it (UDP segmentation offload, USO) in front of the first device that
// cannot take it.

const (
	ethernetLen = 14
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8
	maxHeaders  = ethernetLen + ipv6Len + udpLen
	udpCheckAt  = 6

	typeIPv4 = 0x0800
	typeIPv6 = 0x86DD
)

// headersOf returns the length of the headers of a frame that may join a superframe: Ethernet, an
// IP header without options, UDP and a payload, with nothing behind it. It returns 0 for any other.
func headersOf(f []byte) int {
	if len(f) <= ethernetLen+ipv4Len+udpLen {
		return 0
	}
	switch p := f[ethernetLen:]; binary.BigEndian.Uint16(f[12:]) {
	case typeIPv4:
		const mayFragment = 0xbfff // all but DF
		if p[0] == 0x45 && p[9] == unix.IPPROTO_UDP && int(binary.BigEndian.Uint16(p[2:])) == len(p) && binary.BigEndian.Uint16(p[6:])&mayFragment == 0 {
			return ethernetLen + ipv4Len + udpLen
		}
	case typeIPv6:
		if len(f) > maxHeaders && p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP && int(binary.BigEndian.Uint16(p[4:])) == len(p)-ipv6Len {
			return maxHeaders
		}
	}
	return 0
}

// sameFlow reports whether two frames with headers of n bytes, the second not longer, differ in
// their headers only in lengths and checksums.
func sameFlow(a, b []byte, n int) bool {
	if len(a) == len(b) && n == ethernetLen+ipv4Len+udpLen {
		return bytes.Equal(a[:n-2], b[:n-2]) // the lengths are equal too
	}
	ip, udp := ethernetLen, n-udpLen
	if !bytes.Equal(a[udp:udp+4], b[udp:udp+4]) {
		return false
	}
	if n == maxHeaders {
		return bytes.Equal(a[:ip+4], b[:ip+4]) && bytes.Equal(a[ip+6:udp], b[ip+6:udp])
	}
	return bytes.Equal(a[:ip+2], b[:ip+2]) && bytes.Equal(a[ip+4:ip+10], b[ip+4:ip+10]) && bytes.Equal(a[ip+12:udp], b[ip+12:udp])
}

// run describes the frames at the start of a list that form one superframe.
type run struct {
	frames  int  // 1: no superframe
	total   int  // length of the superframe
	headers int  // length of its headers
	open    bool // it ends with the list, and one more frame could join
}

// runOf returns the run at the start of frames, of at most limit datagrams.
func runOf(frames [][]byte, limit int) run {
	first := frames[0]
	r := run{frames: 1, total: len(first), headers: headersOf(first)}
	if r.headers == 0 {
		return r
	}
	const most = ethernetLen + maxPacket
	for ; r.frames < limit; r.frames++ {
		if r.frames == len(frames) {
			r.open = r.total+len(first)-r.headers <= most
			break
		}
		f := frames[r.frames]
		payload := len(f) - r.headers
		if len(f) > len(first) || r.total+payload > most || headersOf(f) != r.headers || !sameFlow(first, f, r.headers) {
			break
		}
		r.total += payload
		if len(f) < len(first) {
			r.frames++
			break // a shorter frame is the last one
		}
	}
	return r
}

// putHeaders writes the headers of a superframe of total bytes, whose datagrams have frames like
// first, and its virtio-net header.
func putHeaders(vnet, b, first []byte, total, headers int) {
	copy(b, first[:headers])
	udpAt := headers - udpLen
	ip, udp := b[ethernetLen:udpAt], b[udpAt:headers]
	datagram := total - udpAt
	var pseudo uint16 // sum of the pseudo header, not complemented
	if len(ip) == ipv4Len {
		binary.BigEndian.PutUint16(ip[2:], uint16(total-ethernetLen))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
		pseudo = checksum.Sum(ip[12:20])
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(datagram))
		pseudo = checksum.Sum(ip[8:40])
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(datagram))
	binary.BigEndian.PutUint16(udp[udpCheckAt:], checksum.Fold(uint32(pseudo)+unix.IPPROTO_UDP+uint32(datagram)))
	h := vnetHeader{
		flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, gsoType: gsoUDPL4, headerLen: uint16(headers),
		gsoSize: uint16(len(first) - headers), csumStart: uint16(udpAt), csumOffset: udpCheckAt,
	}
	h.put(vnet)
}

// Cut writes the i-th frame of superframe f to dst and returns its length, or 0 if there is none.
// It leaves the UDP checksum zero.
func Cut(dst, f []byte, segment, i int) int {
	headers := headersOf(f)
	at := headers + i*segment
	if headers == 0 || at >= len(f) {
		return 0
	}
	n := headers + copy(dst[headers:], f[at:min(at+segment, len(f))])
	copy(dst, f[:headers])
	ip, udp := dst[ethernetLen:headers-udpLen], dst[headers-udpLen:headers]
	if len(ip) == ipv4Len {
		binary.BigEndian.PutUint16(ip[2:], uint16(n-ethernetLen))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(n-ethernetLen-ipv6Len))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(n-headers+udpLen))
	udp[udpCheckAt], udp[udpCheckAt+1] = 0, 0
	return n
}

// inspect describes a frame that came with a virtio-net header. It refuses a kind of superframe
// that was not negotiated, and one with inconsistent lengths. mtu bounds each datagram's packet.
func inspect(h vnetHeader, f []byte, mtu int) (Received, bool) {
	r := Received{Len: len(f)}
	switch h.gsoType {
	case gsoNone:
		return r, len(f) >= MinFrame && len(f) <= mtu+FrameOverhead
	case gsoUDPL4:
	default:
		return r, false
	}
	headers := headersOf(f)
	if headers == 0 || h.gsoSize == 0 {
		return r, false
	}
	r.Segment = int(h.gsoSize)
	payload := len(f) - headers
	ok := payload > r.Segment && payload <= r.Segment*maxSegments && r.Segment+headers-ethernetLen <= mtu
	return r, ok && int(binary.BigEndian.Uint16(f[headers-udpLen+4:])) == payload+udpLen
}

// datagrams returns the number of frames in a superframe with headers of the given length; 1 for a
// plain frame.
func (r Received) datagrams(headers int) int {
	if r.Segment == 0 {
		return 1
	}
	return (r.Len - headers + r.Segment - 1) / r.Segment
}

// vnetHeaderLen is the size of struct virtio_net_hdr_v1, which the kernel puts in front of each
// frame, in its own byte order.
const vnetHeaderLen = 12

// vnetHeader holds the used fields of that header. The header length in it is only a hint and
// cannot be trusted.
type vnetHeader struct {
	flags      uint8
	gsoType    uint8
	headerLen  uint16 // Ethernet, IP and UDP header
	gsoSize    uint16 // payload bytes of each segment
	csumStart  uint16 // where the checksummed part begins
	csumOffset uint16 // where in it the checksum goes
}

func (h *vnetHeader) put(b []byte) {
	_ = b[vnetHeaderLen-1]
	b[0], b[1] = h.flags, h.gsoType
	binary.NativeEndian.PutUint16(b[2:], h.headerLen)
	binary.NativeEndian.PutUint16(b[4:], h.gsoSize)
	binary.NativeEndian.PutUint16(b[6:], h.csumStart)
	binary.NativeEndian.PutUint16(b[8:], h.csumOffset)
	binary.NativeEndian.PutUint16(b[10:], 0)
}

func parseVnetHeader(b []byte) vnetHeader {
	_ = b[vnetHeaderLen-1]
	return vnetHeader{
		flags: b[0], gsoType: b[1], headerLen: binary.NativeEndian.Uint16(b[2:]), gsoSize: binary.NativeEndian.Uint16(b[4:]),
		csumStart: binary.NativeEndian.Uint16(b[6:]), csumOffset: binary.NativeEndian.Uint16(b[8:]),
	}
}

const (
	gsoNone  = unix.VIRTIO_NET_HDR_GSO_NONE
	gsoUDPL4 = unix.VIRTIO_NET_HDR_GSO_UDP_L4
)

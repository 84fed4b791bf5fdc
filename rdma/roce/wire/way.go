package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/checksum"
	"github.com/falcon-vnic/vnic/rdma/ib"
)

// Errors of packets. RoCEv2 drops all of them silently (Annex A17, CA17-24).
var (
	ErrIP   = errors.New("rdma/roce/wire: not an IP header of RoCEv2")
	ErrUDP  = errors.New("rdma/roce/wire: not a UDP header of RoCEv2")
	ErrICRC = errors.New("rdma/roce/wire: wrong ICRC")
)

// All packets go to this port of UDP (Annex A17, CA17-20).
const (
	Protocol = 17
	Port     = 4791
)

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	dontFragment = 0x4000 // flags and fragment offset of IPv4 (CA17-7, CA17-8)

	// ICRCLen is the length of the ICRC at the end of a packet.
	ICRCLen = 4
	// MaxOverhead is the maximum length of a packet with data, without the data. With it the data
	// of any operation fits a network's MTU.
	MaxOverhead = ipv6Len + udpLen + MaxDataHeaderLen + ICRCLen
)

// Values of the ECN field.
const (
	ECNMask = 3
	ECT0    = 2 // the sender reacts to marks
	ECNCE   = 3 // congestion experienced
)

// Way holds the contents of the IP and UDP headers of a packet.
type Way struct {
	Src, Dst netip.Addr // of one family; IPv4 addresses are not mapped
	Class    uint8      // TOS or traffic class, with the ECN field
	Hops     uint8      // TTL or hop limit
	Flow     uint32     // flow label, 20 bits; IPv6 only
	SrcPort  uint16     // identifies the flow (Annex A17.9.4)
}

// HeaderLen returns the number of header bytes in front of the BTH.
func (w *Way) HeaderLen() int {
	if w.Dst.Is4() {
		return ipv4Len + udpLen
	}
	return ipv6Len + udpLen
}

// Put writes the IP and UDP headers at the start of packet (Annex A17.3.1, A17.3.2) and the ICRC at
// its end. packet must have its final length.
func (w *Way) Put(packet []byte) {
	ip := w.HeaderLen() - udpLen
	u := packet[ip:]
	binary.BigEndian.PutUint16(u, w.SrcPort)
	binary.BigEndian.PutUint16(u[2:], Port)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	if ip == ipv4Len {
		w.putIPv4(packet)
	} else {
		w.putIPv6(packet)
	}
	end := len(packet) - ICRCLen
	variant := mask(packet, ip)
	binary.LittleEndian.PutUint32(packet[end:], crc(packet[:end]))
	variant.restore(packet, ip)
	u[6], u[7] = 0, 0 // no UDP checksum
}

func (w *Way) putIPv4(b []byte) {
	b[0], b[1] = 0x45, w.Class
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint32(b[4:], dontFragment) // identification 0
	b[8], b[9] = w.Hops, Protocol
	s, d := w.Src.As4(), w.Dst.As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^checksum.Sum(b[:ipv4Len]))
}

// checksummed reports whether the UDP checksum of a packet whose UDP header is at ip is correct or
// omitted. It should be omitted (Annex A17.3.2.4, RFC 768, RFC 6935).
func checksummed(b []byte, ip int) bool {
	u := b[ip:]
	if u[6]|u[7] == 0 {
		return true
	}
	addresses := b[12:ipv4Len]
	if ip != ipv4Len {
		addresses = b[8:ipv6Len]
	}
	return checksum.Fold(Protocol+uint32(len(u))+uint32(checksum.Sum(addresses))+uint32(checksum.Sum(u))) == 0xffff
}

func (w *Way) putIPv6(b []byte) {
	binary.BigEndian.PutUint32(b, 6<<28|uint32(w.Class)<<20|w.Flow&0xfffff)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipv6Len))
	b[6], b[7] = Protocol, w.Hops
	s, d := w.Src.As16(), w.Dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
}

// Parse checks the headers and the ICRC of an IP packet. It returns the contents of the headers,
// and the transport packet without ICRC. b must hold exactly the packet. Parse changes it
// temporarily.
func Parse(b []byte) (w Way, transport []byte, err error) {
	if w, transport, err = ParseHeaders(b); err == nil {
		err = Check(b)
	}
	if err != nil {
		transport = nil
	}
	return w, transport, err
}

// ParseHeaders does what Parse does, but for the checksums.
func ParseHeaders(b []byte) (w Way, transport []byte, err error) {
	ip, err := w.parseIP(b)
	if err != nil {
		return w, nil, err
	}
	u := b[ip:]
	switch {
	case len(u) < udpLen+BTHLen+ICRCLen:
		return w, nil, ib.ErrShort
	case binary.BigEndian.Uint16(u[2:]) != Port, int(binary.BigEndian.Uint16(u[4:])) != len(u), len(u)&3 != 0:
		return w, nil, ErrUDP
	}
	w.SrcPort = binary.BigEndian.Uint16(u)
	return w, b[ip+udpLen : len(b)-ICRCLen], nil
}

// Check checks the UDP checksum and the ICRC of a packet that ParseHeaders accepts. It changes it
// temporarily.
func Check(b []byte) error {
	ip := ipv4Len
	if b[0]>>4 == 6 {
		ip = ipv6Len
	}
	if !checksummed(b, ip) {
		return ErrUDP
	}
	end := len(b) - ICRCLen
	variant := mask(b, ip)
	sum := crc(b[:end])
	variant.restore(b, ip)
	if sum != binary.LittleEndian.Uint32(b[end:]) {
		return ErrICRC
	}
	return nil
}

// parseIP parses the IP header. The addresses directly precede the UDP header, because RoCEv2 has
// no options or extension headers (CA17-3, CA17-16).
func (w *Way) parseIP(b []byte) (n int, err error) {
	switch {
	case len(b) < ipv4Len:
		return 0, ib.ErrShort
	case b[0] == 0x45:
		if int(binary.BigEndian.Uint16(b[2:])) != len(b) || binary.BigEndian.Uint16(b[6:]) != dontFragment || b[9] != Protocol {
			return 0, ErrIP
		}
		w.Class, w.Hops = b[1], b[8]
		w.Src, w.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		return ipv4Len, nil
	case b[0]>>4 != 6:
		return 0, ErrIP
	case len(b) < ipv6Len:
		return 0, ib.ErrShort
	case int(binary.BigEndian.Uint16(b[4:])) != len(b)-ipv6Len, b[6] != Protocol:
		return 0, ErrIP
	}
	head := binary.BigEndian.Uint32(b)
	w.Class, w.Hops, w.Flow = uint8(head>>20), b[7], head&0xfffff
	w.Src, w.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	return ipv6Len, nil
}

// The ICRC covers what no hop may change: CRC-32 over 64 one bits, then over the packet from the IP
// header to the pad, with the fields that hops do change set to ones (Annex A17.3.3).

// ones is the CRC of the 64 one bits.
var ones = crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

func crc(masked []byte) uint32 { return crc32.Update(ones, crc32.IEEETable, masked) }

// variant holds the fields of a packet that the ICRC does not cover.
type variant struct {
	head [4]byte // of IPv6; TOS in the second byte
	hops byte
	ip   [2]byte // checksum of IPv4
	udp  [2]byte // checksum
	bth  byte    // FECN, BECN and reserved bits
}

// mask sets these fields to ones in a packet whose UDP header is at ip, and returns their values.
func mask(b []byte, ip int) (v variant) {
	copy(v.head[:], b)
	if ip == ipv4Len {
		v.hops, v.ip = b[8], [2]byte(b[10:])
		b[1], b[8], b[10], b[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		v.hops = b[7]
		b[0], b[1], b[2], b[3], b[7] = b[0]|0x0f, 0xff, 0xff, 0xff, 0xff
	}
	v.udp, v.bth = [2]byte(b[ip+6:]), b[ip+udpLen+4]
	b[ip+6], b[ip+7], b[ip+udpLen+4] = 0xff, 0xff, 0xff
	return v
}

// restore undoes mask.
func (v *variant) restore(b []byte, ip int) {
	copy(b, v.head[:])
	if ip == ipv4Len {
		b[8] = v.hops
		copy(b[10:], v.ip[:])
	} else {
		b[7] = v.hops
	}
	copy(b[ip+6:], v.udp[:])
	b[ip+udpLen+4] = v.bth
}

package gateway

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// UseTape makes a tape record whether checksums of payload are right.
func (g *Gateway) UseTape(t *tape.Tape) { g.out.tape = t }

// Head returns how many of the first bytes of an IP packet the gateway looks at: all except the data
// of TCP and UDP and what an ICMP error quotes. sum is the offset of the checksum that covers the
// rest, too; 0: there is none. port is the destination port of UDP, else 0. b is the beginning of the
// packet, which has total bytes.
func Head(b []byte, total int) (n, sum int, port uint16) {
	var h header
	why := h.parse(b, total)
	if why != none || h.l4 > len(b) {
		return len(b), 0, 0
	}
	if h.later {
		return h.l4, 0, 0
	}
	l4 := b[h.l4:]
	switch h.proto {
	case protoTCP:
		if len(l4) >= tcpLen {
			return min(h.l4+max(int(l4[12]>>4)*4, tcpLen), len(b)), h.l4 + tcpCheckAt, 0
		}
	case protoUDP:
		if len(l4) < udpLen {
			break
		}
		from, to := binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
		if to == dhcpServer || from == dhcpServer {
			break
		}
		return h.l4 + udpLen, h.l4 + udpCheckAt, to
	case protoICMP, protoICMP6:
		if len(l4) >= icmpLen && (h.v6 && l4[0] < 128 || !h.v6 && !icmpQuery(l4[0])) {
			return h.l4 + icmpLen, h.l4 + 2, 0
		}
	}
	return len(b), 0, 0
}

// FrameHead does what Head does, for an Ethernet frame. head finds the headers of an IP packet,
// as Head does.
func FrameHead(b []byte, total int, head func(b []byte, total int) (n, sum int)) (n, sum int) {
	at := ethLen
	if len(b) >= ethLen+tagLen && binary.BigEndian.Uint16(b[ethLen-2:]) == typeVLAN {
		at += tagLen
	}
	if len(b) < at {
		return len(b), 0
	}
	if typ := binary.BigEndian.Uint16(b[at-2:]); typ != typeIPv4 && typ != typeIPv6 {
		return len(b), 0
	}
	if n, sum = head(b[at:], total-at); sum > 0 {
		sum += at
	}
	return at + n, sum
}

// Describe says what an IP packet is, for people. b is the beginning of total bytes.
func Describe(b []byte, total int) string {
	var h header
	why := h.parse(b, total)
	if why != none {
		return fmt.Sprintf("%d bytes", total)
	}
	proto := fmt.Sprintf("protocol %d", h.proto)
	switch h.proto {
	case protoTCP:
		proto = "TCP"
	case protoUDP:
		proto = "UDP"
	case protoICMP, protoICMP6:
		proto = "ICMP"
	}
	return fmt.Sprintf("%d bytes of %s from %s to %s", total, proto, h.src, h.dst)
}

// DescribeFrame does what Describe does, for an Ethernet frame.
func DescribeFrame(b []byte, total int) string {
	if len(b) < ethLen {
		return fmt.Sprintf("%d bytes", total)
	}
	switch typ := binary.BigEndian.Uint16(b[ethLen-2:]); typ {
	case typeIPv4, typeIPv6:
		return Describe(b[ethLen:], total-ethLen)
	case typeARP:
		return "ARP"
	default:
		return fmt.Sprintf("%d bytes of EtherType %#04x", total, typ)
	}
}

package config

import (
	"crypto/sha256"
	"net/netip"
	"strconv"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// MAC addresses that the configuration leaves out are derived from the NIC's name. They are locally
// administered. Those of a NIC whose name is a number from 1 to 255 contain it:
//
//	function       02:56:4e:HH:PV:VV
//	gateway        02:56:4f:HH:PV:VV
//	port's device  02:56:50:HH:PV:VV
//	uplink         02:56:4e:ff:00:HH
//
// Those of other names begin with 28 bits of a hash of the name; two of 1000 NICs have the same with
// a probability of 1 in 500. Two bits of the first byte say whose they are:
//
//	hhhhkk10:hh:hh:hh:PV:VV
const (
	ofFunction byte = iota << 2
	ofGateway
	ofPort
	ofUplink
)

// FunctionMAC returns the default MAC of a function of a NIC.
func FunctionMAC(nic string, pf uint8, vf uint16) MAC { return derive(nic, ofFunction, pf, vf) }

// GatewayMAC returns the MAC that stands for all other stations at the port of a function with a MAC. It
// depends on that alone, so a guest whose function moves to another NIC goes on with what it knows.
func GatewayMAC(function MAC) MAC {
	m := function
	switch {
	case m[0] == 0x02 && m[1] == 0x56 && m[2] == 0x4e:
		m[2] += ofGateway >> 2
	case m[0]&0x0f == 0x02|ofGateway: // not a default MAC of a function
		m[0] = m[0]&0xf0 | 0x02
	default:
		m[0] = m[0]&0xf0 | 0x02 | ofGateway
	}
	return m
}

// DevicePortMAC returns the default MAC of a bridged port's device.
func DevicePortMAC(nic string, pf uint8, vf uint16) MAC { return derive(nic, ofPort, pf, vf) }

// UplinkMAC returns the default MAC of an uplink.
func UplinkMAC(nic string) MAC {
	if n, ok := number(nic); ok {
		return MAC{0x02, 0x56, 0x4e, 0xff, 0x00, n}
	}
	return derive(nic, ofUplink, 0, 0)
}

func derive(nic string, whose, pf uint8, vf uint16) MAC {
	m := MAC{4: pf<<4 | byte(vf>>8)&0x0f, 5: byte(vf)}
	p := prefixOf(nic)
	copy(m[:], p[:])
	if _, ok := number(nic); ok {
		m[2] += whose >> 2
	} else {
		m[0] |= whose
	}
	return m
}

// prefix is what the MACs of a NIC's functions begin with.
type prefix [4]byte

func prefixOf(nic string) prefix {
	if n, ok := number(nic); ok {
		return prefix{0x02, 0x56, 0x4e, n}
	}
	sum := sha256.Sum256([]byte(nic))
	p := prefix(sum[:4])
	p[0] = p[0]&0xf0 | 0x02
	if p[0] == 0x02 && p[1] == 0x56 { // those are of numbers
		p[1]++
	}
	return p
}

// number returns the number that a NIC's name is.
func number(nic string) (n uint8, ok bool) {
	v, err := strconv.ParseUint(nic, 10, 8)
	return uint8(v), err == nil && v > 0 && strconv.FormatUint(v, 10) == nic
}

// prefixIn returns the beginning of the MAC in a link-local address, if there is one (RFC 4291,
// appendix A).
func prefixIn(a netip.Addr) (p prefix, ok bool) {
	b := a.As16()
	mac := MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
	return prefix(mac[:4]), pfvf.LinkLocal(mac) == b
}

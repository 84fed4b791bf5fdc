package cm

import "encoding/binary"

// Port says that a function's Ethernet port has an address in a tenant. Plain IP for the address
// goes to the NIC that announced it.
type Port struct {
	Tenant   uint32
	Addr     [16]byte // IPv4 as IPv4-mapped, like a GID
	Function uint32   // host 8 | PF 4 | VF 12
	MTU      uint32   // of the port, bytes of IP packet
}

// MaxPorts is the number of port addresses that one NIC can announce to another.
const MaxPorts = 2048

// PORTS announces the addresses of the sender's ports in the tenants shared with the receiver. It
// follows Hello and is sent again when something changes: a disabled function is no longer in it.
// Each PORTS replaces the ones before.
//
//	count 16 | reserved 16 | count × { tenant 32 | address 128 | function 32 | MTU 32 }
type PORTS struct {
	Ports []Port // at most MaxPorts
}

const portLen = 28

// Append encodes the message at the end of b.
func (m *PORTS) Append(b []byte) []byte {
	b, start := begin(b, TypePORTS)
	b = appendCount(b, len(m.Ports))
	for i := range m.Ports {
		p := &m.Ports[i]
		b = binary.BigEndian.AppendUint32(b, p.Tenant)
		b = append(b, p.Addr[:]...)
		b = binary.BigEndian.AppendUint32(b, p.Function)
		b = binary.BigEndian.AppendUint32(b, p.MTU)
	}
	return end(b, start)
}

// ParsePORTS decodes a whole message.
func ParsePORTS(b []byte) (m PORTS, err error) {
	d, err := decode(b, TypePORTS)
	if err != nil {
		return m, err
	}
	for range d.count("ports", MaxPorts, portLen) {
		m.Ports = append(m.Ports, Port{Tenant: d.u32(), Addr: d.gid(), Function: d.u24("function"), MTU: d.u32()})
	}
	return m, d.done()
}

package cm

import "encoding/binary"

// Hello is the first message in each direction of a link. It is sent again when
// what a NIC offers changes; the newest replaces the ones before.
//
//	host 8 | reserved 24 | instance 64 | count 16 | reserved 16 |
//	count × { tenant 32 | GID 128 | function 32 }
type Hello struct {
	Host      HostID
	Instance  uint64     // random per start of the process
	Endpoints []Endpoint // at most MaxEndpoints
}

const endpointLen = 24

// Append encodes the message at the end of b.
func (m *Hello) Append(b []byte) []byte {
	b, start := begin(b, TypeHello)
	b = append(b, m.Host, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.Instance)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Endpoints)))
	b = append(b, 0, 0)
	for i := range m.Endpoints {
		e := &m.Endpoints[i]
		b = binary.BigEndian.AppendUint32(b, e.Tenant)
		b = append(b, e.GID[:]...)
		b = binary.BigEndian.AppendUint32(b, e.Function)
	}
	return end(b, start)
}

// ParseHello decodes a whole message.
func ParseHello(b []byte) (m Hello, err error) {
	d, err := decode(b, TypeHello)
	if err != nil {
		return m, err
	}
	m.Host = d.u8()
	d.zero(3)
	m.Instance = d.u64()
	n := int(d.u16())
	d.zero(2)
	switch {
	case n > MaxEndpoints:
		d.fail("%d functions, at most %d", n, MaxEndpoints)
	case len(d.b) != n*endpointLen:
		d.fail("%d bytes for %d functions, want %d", len(d.b), n, n*endpointLen)
	case n > 0:
		m.Endpoints = make([]Endpoint, n)
		for i := range m.Endpoints {
			e := &m.Endpoints[i]
			e.Tenant = d.u32()
			e.GID = d.gid()
			e.Function = d.u24("function")
		}
	}
	return m, d.done()
}

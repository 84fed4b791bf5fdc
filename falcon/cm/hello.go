package cm

import "encoding/binary"

// Hello is the first message in each direction of a link. It is sent again when the offered
// addresses change. Each Hello replaces the ones before.
//
//	host 8 | reserved 24 | instance 64 | count 16 | reserved 16 |
//	count × { tenant 32 | GID 128 | shard 8 | function 24 }
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
	b = appendCount(b, len(m.Endpoints))
	for i := range m.Endpoints {
		e := &m.Endpoints[i]
		b = binary.BigEndian.AppendUint32(b, e.Tenant)
		b = append(b, e.GID[:]...)
		b = appendSharded(b, e.Shard, e.Function)
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
	for range d.count("functions", MaxEndpoints, endpointLen) {
		e := Endpoint{Tenant: d.u32(), GID: d.gid()}
		e.Shard, e.Function = d.sharded()
		m.Endpoints = append(m.Endpoints, e)
	}
	return m, d.done()
}

package cm

import (
	"encoding/binary"
	"fmt"
)

// MessageType is the second byte of a message.
type MessageType uint8

// Message types.
const (
	TypeHello MessageType = iota + 1
	TypeREQ
	TypeREP
	TypeRTU
	TypeREJ
	TypeDREQ
	TypeDREP
	TypeREKEY
	TypeREKEYACK
	TypeREKEYREQ
	TypePORTS
	TypeBYE
)

func (t MessageType) String() string {
	names := [...]string{"none", "Hello", "REQ", "REP", "RTU", "REJ", "DREQ", "DREP", "REKEY", "REKEYACK", "REKEYREQ", "PORTS", "BYE"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// headerLen is the length of the header of every message: version 8, type 8, length of the whole
// message 16. All integers are big-endian.
const headerLen = 4

// MessageError says why a message cannot be decoded.
type MessageError struct {
	Type MessageType
	Why  string
}

func (e *MessageError) Error() string { return fmt.Sprintf("cm: %v message: %s", e.Type, e.Why) }

// Is makes every MessageError an ErrProtocol.
func (e *MessageError) Is(target error) bool { return target == ErrProtocol }

// VersionError means that a message has another version.
type VersionError struct{ Got uint8 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the peer speaks version %d of the connection managers' protocol, this NIC version %d: "+
		"install the same release of vnic at both", e.Got, Version)
}

// Is makes every VersionError an ErrProtocol.
func (e *VersionError) Is(target error) bool { return target == ErrProtocol }

// PeekType checks the header and returns the message's type.
func PeekType(b []byte) (MessageType, error) {
	if len(b) < headerLen {
		return 0, &MessageError{0, fmt.Sprintf("%d bytes, the header has %d", len(b), headerLen)}
	}
	t := MessageType(b[1])
	switch {
	case b[0] != Version:
		return t, &VersionError{b[0]}
	case t < TypeHello || t > TypeBYE:
		return t, &MessageError{t, "unknown type"}
	case int(binary.BigEndian.Uint16(b[2:])) != len(b):
		return t, &MessageError{t, fmt.Sprintf("length field %d, received %d bytes", binary.BigEndian.Uint16(b[2:]), len(b))}
	}
	return t, nil
}

// Message is what connection managers send each other.
type Message interface {
	kind() MessageType
	append(b []byte) []byte // appends what follows the header
	read(d *decoder)
}

// Encode returns a message with its header.
func Encode(m Message) []byte {
	b := m.append([]byte{Version, byte(m.kind()), 0, 0})
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

// Parse decodes a whole message of the type M.
func Parse[M any, P interface {
	*M
	Message
}](b []byte) (m M, err error) {
	t, err := PeekType(b)
	if err != nil {
		return m, err
	}
	if want := P(&m).kind(); t != want {
		return m, &MessageError{t, fmt.Sprintf("want %v", want)}
	}
	d := decoder{typ: t, b: b[headerLen:]}
	P(&m).read(&d)
	return m, d.done()
}

// decoder reads fields in order. After the first error it returns zeros and keeps the error, so
// that a Parse function checks once at its end.
type decoder struct {
	typ MessageType
	b   []byte
	why string
}

func (d *decoder) fail(format string, args ...any) {
	if d.why == "" {
		d.why = fmt.Sprintf(format, args...)
	}
}

func (d *decoder) bytes(n int) []byte {
	if len(d.b) < n {
		d.fail("truncated")
		d.b = nil
		return make([]byte, n)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8   { return d.bytes(1)[0] }
func (d *decoder) u16() uint16 { return binary.BigEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.BigEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.BigEndian.Uint64(d.bytes(8)) }

func (d *decoder) u24(name string) uint32 {
	v := d.u32()
	if v > max24 {
		d.fail("%s %#x does not fit 24 bits", name, v)
	}
	return v
}

// shard checks the number of a shard.
func (d *decoder) shard(n uint8) uint8 {
	if n >= MaxShards {
		d.fail("shard %d: want 0 to %d", n, MaxShards-1)
	}
	return n
}

// sharded reads a shard 8 and a number 24.
func (d *decoder) sharded() (shard uint8, v uint32) {
	w := d.u32()
	return d.shard(uint8(w >> 24)), w & max24
}

func appendSharded(b []byte, shard uint8, v uint32) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(shard)<<24|v)
}

func (d *decoder) gid() (g [16]byte) {
	copy(g[:], d.bytes(16))
	return g
}

// zero reads reserved bytes. They must be zero, so that a later version can define them.
func (d *decoder) zero(n int) {
	for _, v := range d.bytes(n) {
		if v != 0 {
			d.fail("reserved byte is %#x, want 0", v)
		}
	}
}

// count reads the number of elements of size bytes that make up the rest of the message, and two
// reserved bytes.
func (d *decoder) count(what string, most, size int) int {
	n := int(d.u16())
	d.zero(2)
	switch {
	case n > most:
		d.fail("%d %s, at most %d", n, what, most)
	case len(d.b) != n*size:
		d.fail("%d bytes for %d %s, want %d", len(d.b), n, what, n*size)
	default:
		return n
	}
	return 0
}

func appendCount(b []byte, n int) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(n)), 0, 0)
}

// private reads a length byte, three reserved bytes and that many bytes of data.
func (d *decoder) private() []byte {
	n := int(d.u8())
	d.zero(3)
	if n > MaxPrivate {
		d.fail("%d bytes of private data, at most %d", n, MaxPrivate)
		return nil
	}
	if n == 0 {
		return nil
	}
	return append([]byte(nil), d.bytes(n)...)
}

func appendPrivate(b, private []byte) []byte {
	b = append(b, byte(len(private)), 0, 0, 0)
	return append(b, private...)
}

func (d *decoder) reason() Reason {
	r := Reason(d.u16())
	if !r.onWire() {
		d.fail("reason %d has no meaning", uint16(r))
	}
	return r
}

// done returns the first error; leftover bytes are an error.
func (d *decoder) done() error {
	if len(d.b) > 0 {
		d.fail("%d bytes too many", len(d.b))
	}
	if d.why != "" {
		return &MessageError{d.typ, d.why}
	}
	return nil
}

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

func (*Hello) kind() MessageType { return TypeHello }

func (m *Hello) append(b []byte) []byte {
	b = append(b, m.Host, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.Instance)
	b = appendCount(b, len(m.Endpoints))
	for i := range m.Endpoints {
		e := &m.Endpoints[i]
		b = binary.BigEndian.AppendUint32(b, e.Tenant)
		b = append(b, e.GID[:]...)
		b = appendSharded(b, e.Shard, e.Function)
	}
	return b
}

func (m *Hello) read(d *decoder) {
	m.Host = d.u8()
	d.zero(3)
	m.Instance = d.u64()
	for range d.count("functions", MaxEndpoints, endpointLen) {
		e := Endpoint{Tenant: d.u32(), GID: d.gid()}
		e.Shard, e.Function = d.sharded()
		m.Endpoints = append(m.Endpoints, e)
	}
}

// PortAddress says that a function's Ethernet port has an address in a tenant. Plain IP for the address
// goes to the NIC that announced it.
type PortAddress struct {
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
	Ports []PortAddress // at most MaxPorts
}

const portLen = 28

func (*PORTS) kind() MessageType { return TypePORTS }

func (m *PORTS) append(b []byte) []byte {
	b = appendCount(b, len(m.Ports))
	for i := range m.Ports {
		p := &m.Ports[i]
		b = binary.BigEndian.AppendUint32(b, p.Tenant)
		b = append(b, p.Addr[:]...)
		b = binary.BigEndian.AppendUint32(b, p.Function)
		b = binary.BigEndian.AppendUint32(b, p.MTU)
	}
	return b
}

func (m *PORTS) read(d *decoder) {
	for range d.count("ports", MaxPorts, portLen) {
		m.Ports = append(m.Ports, PortAddress{Tenant: d.u32(), Addr: d.gid(), Function: d.u24("function"), MTU: d.u32()})
	}
}

// BYE says that the sender does not have the receiver as a peer any more. What was agreed between
// the two is void, and the link ends.
type BYE struct{}

func (*BYE) kind() MessageType { return TypeBYE }

func (*BYE) append(b []byte) []byte { return b }

func (*BYE) read(*decoder) {}

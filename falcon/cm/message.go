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
)

func (t MessageType) String() string {
	names := [...]string{"none", "Hello", "REQ", "REP", "RTU", "REJ", "DREQ", "DREP", "REKEY", "REKEYACK", "REKEYREQ", "PORTS"}
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
	case t < TypeHello || t > TypePORTS:
		return t, &MessageError{t, "unknown type"}
	case int(binary.BigEndian.Uint16(b[2:])) != len(b):
		return t, &MessageError{t, fmt.Sprintf("length field %d, received %d bytes", binary.BigEndian.Uint16(b[2:]), len(b))}
	}
	return t, nil
}

// begin appends a header whose length end fills in.
func begin(b []byte, t MessageType) ([]byte, int) {
	return append(b, Version, byte(t), 0, 0), len(b)
}

func end(b []byte, start int) []byte {
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// decoder reads fields in order. After the first error it returns zeros and keeps the error, so
// that a Parse function checks once at its end.
type decoder struct {
	typ MessageType
	b   []byte
	why string
}

func decode(b []byte, want MessageType) (d decoder, err error) {
	t, err := PeekType(b)
	if err != nil {
		return d, err
	}
	if t != want {
		return d, &MessageError{t, fmt.Sprintf("want %v", want)}
	}
	return decoder{typ: t, b: b[headerLen:]}, nil
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

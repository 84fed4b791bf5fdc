package wire

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reserved are the bits of each format that are sent as zero and ignored on receipt, from its first
// byte on.
func reserved(t *testing.T, p any) []byte {
	t.Helper()
	base := "0f000000 00000000" + strings.Repeat("00000000", 4)
	ack := "0f000000 ffffffe1" + strings.Repeat("00000000", 4) + "000001ff"
	switch p := p.(type) {
	case PullRequest:
		return unhex(t, base+"ffff0000 ffffffff")
	case PullData:
		return unhex(t, base)
	case PushData:
		return unhex(t, base+"ffff0000")
	case Resync:
		return unhex(t, base+"000fffff 00000000")
	case Nack:
		return unhex(t, ack+"ff000000 00000000 00e07f00")
	case Ack:
		return unhex(t, ack+"ff000000"+strings.Repeat("00000000", map[bool]int{true: 10}[p.Extended]))
	}
	t.Fatalf("no format of %T", p)
	return nil
}

// TestReservedBitsAreIgnored: a peer of a later version may set them.
func TestReservedBitsAreIgnored(t *testing.T) {
	for name, f := range formats(t) {
		b := bytes.Clone(f.bytes)
		for i, bits := range reserved(t, f.packet) {
			if b[i]&bits != 0 {
				t.Errorf("%s: reserved bits of byte %d are sent as %#x", name, i, b[i]&bits)
			}
			b[i] |= bits
		}
		got, payload, d := parsePacket(b)
		if diff := cmp.Diff(f.packet, got); d != DropNone || diff != "" || !bytes.Equal(payload, f.payload) {
			t.Errorf("%s with reserved bits: %v (-want +got):\n%s", name, d, diff)
		}
	}
}

// TestFieldsAreFull: every field holds its largest value, one that is too large is cut, and neither
// touches another field.
func TestFieldsAreFull(t *testing.T) {
	const ones = ^uint32(0)
	header := func(typ PacketType) Header {
		return Header{
			CID: ones, Function: ones, Protocol: ProtocolNVMe, Type: typ, AckReq: true,
			DataBase: ones, ReqBase: ones, PSN: ones, RSN: ones,
		}
	}
	all := Bitmap128{^uint64(0), ^uint64(0)}
	congestion := Congestion{Hops: 0xff, RxOccupancy: 0xff, ECN: 0xffff, RUE: ones}
	ack := Ack{CID: ones, DataBase: ones, ReqBase: ones, T1: ones, T2: ones, Congestion: congestion, DataOWN: true, ReqOWN: true}
	extended := ack
	extended.Extended, extended.DataAck, extended.DataRx, extended.Req = true, all, all, all.Lo
	nack := Nack{
		CID: ones, DataBase: ones, ReqBase: ones, T1: ones, T2: ones, Congestion: congestion,
		PSN: ones, Code: 0xff, RNR: 0xff, Request: true, ULPCode: 0xff,
	}
	for _, p := range []any{
		PullRequest{header(TypePullRequest), 0xffff},
		PullData{header(TypePullData)},
		PushData{header(TypePushData), 0xffff},
		Resync{header(TypeResync), 0xff, TypePushData, ones},
		ack, extended, nack,
	} {
		b := appendPacket(t, p)
		typ, d := Peek(b)
		if d != DropNone {
			t.Errorf("%T: type %v, %v", p, typ, d)
		}
		for i, bits := range reserved(t, p) {
			want := ^bits
			switch {
			case i == 0:
				want = Version << 4
			case i == 7: // protocol and type
				want = b[i]
			case i == 25 && typ == TypeResync:
				want = byte(TypePushData) << 4
			case i == 29 && !typ.HasBase(): // the bit of RUE Info that is never sent
				want = 0x7f
			}
			if b[i] != want {
				t.Errorf("%T: byte %d is %#x, want %#x", p, i, b[i], want)
			}
		}
		if _, ok := p.(PushData); ok {
			b = append(b, make([]byte, 0xffff)...)
		}
		got, _, d := parsePacket(b)
		if d != DropNone || !bytes.Equal(appendPacket(t, got), b[:len(appendPacket(t, got))]) {
			t.Errorf("%T: parsed as %+v, %v", p, got, d)
		}
	}
	none := Header{Type: 0xf0 | TypePullData, Protocol: 0xf8 | ProtocolRDMA}
	if b := none.Append(nil); b[7] != byte(ProtocolRDMA)<<5|byte(TypePullData)<<1 {
		t.Errorf("protocol and type %#x", b[7])
	}
	r := Resync{none, 0, 0xf0 | TypePushData, 0}
	if b := r.Append(nil); binary.BigEndian.Uint32(b[24:]) != uint32(TypePushData)<<20 {
		t.Errorf("Resync %x", b[24:])
	}
}

// TestPeekBorders: as many bytes as the common fields take are enough to tell the type, and the
// first word to tell the connection.
func TestPeekBorders(t *testing.T) {
	b := vector(t, "pull_req")
	for n := range 10 {
		if _, d := Peek(b[:n]); (d == DropNone) != (n >= 8) {
			t.Errorf("type of %d bytes: %v", n, d)
		}
		if cid, ok := PeekCID(b[:n]); ok != (n >= 4) || ok && cid != 0xabcd {
			t.Errorf("CID of %d bytes: %#x, %v", n, cid, ok)
		}
	}
	other := append([]byte{2 << 4}, b[1:]...)
	if _, ok := PeekCID(other); ok {
		t.Error("CID of another version")
	}
}

// TestBaseHeaders: acknowledgements and reserved types have none.
func TestBaseHeaders(t *testing.T) {
	for typ := range PacketType(16) {
		want := typ == TypePullRequest || typ == TypePullData || typ == TypePushData || typ == TypeResync
		if typ.HasBase() != want {
			t.Errorf("%v: base header %v", typ, typ.HasBase())
		}
		h := Header{Type: typ, Protocol: ProtocolRDMA}
		if _, d := ParseHeader(h.Append(nil)); (d == DropNone) != want {
			t.Errorf("%v: %v", typ, d)
		}
	}
}

// TestOtherFormats: each parser takes its own format and no other.
func TestOtherFormats(t *testing.T) {
	for name, f := range formats(t) {
		if _, _, d := ParsePullRequest(f.bytes); (d == DropNone) != isA[PullRequest](f.packet) {
			t.Errorf("%s as a pull request: %v", name, d)
		}
		if _, _, d := ParsePullData(f.bytes); (d == DropNone) != isA[PullData](f.packet) {
			t.Errorf("%s as pull data: %v", name, d)
		}
		if _, _, d := ParsePushData(f.bytes); (d == DropNone) != isA[PushData](f.packet) {
			t.Errorf("%s as push data: %v", name, d)
		}
		if _, d := ParseResync(f.bytes); (d == DropNone) != isA[Resync](f.packet) {
			t.Errorf("%s as a Resync: %v", name, d)
		}
		if _, d := ParseNack(f.bytes); (d == DropNone) != isA[Nack](f.packet) {
			t.Errorf("%s as a NACK: %v", name, d)
		}
		if _, d := ParseAck(f.bytes); (d == DropNone) != isA[Ack](f.packet) {
			t.Errorf("%s as an ACK: %v", name, d)
		}
	}
}

func isA[T any](p any) bool { _, ok := p.(T); return ok }

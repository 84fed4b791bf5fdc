package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vectors returns the golden packets by name prefix.
func vectors(t testing.TB) map[string][]byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/falcon.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name string
		Len  int
		Hex  string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	m := make(map[string][]byte)
	for _, v := range list {
		b, err := hex.DecodeString(v.Hex)
		if err != nil || len(b) != v.Len {
			t.Fatalf("%s: %d bytes, want %d: %v", v.Name, len(b), v.Len, err)
		}
		m[v.Name] = b
	}
	return m
}

func vector(t testing.TB, prefix string) []byte {
	t.Helper()
	for name, b := range vectors(t) {
		if strings.HasPrefix(name, prefix) {
			return b
		}
	}
	t.Fatalf("no vector %q", prefix)
	return nil
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var golden = Header{
	CID: 0x00abcd, Function: 0x000102, Protocol: ProtocolRDMA, AckReq: true,
	DataBase: 0x11223344, ReqBase: 0x55667788, PSN: 0x99aabbcc, RSN: 0xddeeff01,
}

func goldenOf(t PacketType) Header { h := golden; h.Type = t; return h }

var ackBase = Ack{
	CID: 0x00abcd, DataBase: 301, ReqBase: 101, T1: 0x01020304, T2: 0x01020306,
	Congestion: Congestion{Hops: 3, RxOccupancy: 17},
}

// formats are all packets with their golden bytes: what is appended and what must come out of
// parsing it.
func formats(t testing.TB) map[string]struct {
	packet  any
	payload []byte
	bytes   []byte
} {
	type format = struct {
		packet  any
		payload []byte
		bytes   []byte
	}
	tail := func(b []byte, n int) []byte { return b[n:] }
	pull, data := vector(t, "pull_req"), vector(t, "pull_data + READ")
	write, send := vector(t, "push_data len=32"), vector(t, "push_data len=24")
	back := ackBase
	back.ECN, back.RUE = 0x1234, 0x15555
	eack := ackBase
	eack.Extended, eack.DataBase, eack.DataOWN, eack.DataRx.Lo = true, 300, true, 0b1110
	nack := Nack{
		CID: 0xabcd, DataBase: 301, ReqBase: 101, T1: 0x01020304, T2: 0x01020306, Congestion: Congestion{Hops: 3, RxOccupancy: 17},
		PSN: 301, Code: NackRNR, RNR: 14, ULPCode: 0x20,
	}
	drop := nack
	drop.PSN, drop.Code, drop.RNR, drop.ULPCode, drop.Request = 105, NackResource, 0, 0, true
	return map[string]format{
		"pull request":    {PullRequest{goldenOf(TypePullRequest), 4120}, tail(pull, PullRequestLen), pull},
		"pull data":       {PullData{goldenOf(TypePullData)}, tail(data, PullDataLen), data},
		"push data write": {PushData{goldenOf(TypePushData), 32}, tail(write, PushDataLen), write},
		"push data send":  {PushData{goldenOf(TypePushData), 24}, tail(send, PushDataLen), send},
		"resync":          {Resync{goldenOf(TypeResync), ResyncCIE, TypePushData, 0}, nil, vector(t, "resync")},
		"BACK":            {back, nil, vector(t, "BACK")},
		"EACK": {eack, nil, unhex(t, "1000abcd 00000014 0000012c 00000065 01020304 01020306 38800000 00000002"+
			strings.Repeat("00000000", 4)+"00000000 00000000 00000000 0000000e 00000000 00000000")},
		"NACK RNR":      {nack, nil, vector(t, "NACK RNR")},
		"NACK resource": {drop, nil, vector(t, "NACK resource")},
	}
}

// appendPacket encodes any packet struct.
func appendPacket(t testing.TB, p any) []byte {
	switch p := p.(type) {
	case PullRequest:
		return p.Append(nil)
	case PullData:
		return p.Append(nil)
	case PushData:
		return p.Append(nil)
	case Resync:
		return p.Append(nil)
	case Ack:
		return p.Append(nil)
	case Nack:
		return p.Append(nil)
	}
	t.Fatalf("no encoder for %T", p)
	return nil
}

// parsePacket decodes whatever b is.
func parsePacket(b []byte) (packet any, payload []byte, d Drop) {
	typ, d := Peek(b)
	if d != DropNone {
		return nil, nil, d
	}
	switch typ {
	case TypePullRequest:
		p, payload, d := ParsePullRequest(b)
		return p, payload, d
	case TypePullData:
		p, payload, d := ParsePullData(b)
		return p, payload, d
	case TypePushData:
		p, payload, d := ParsePushData(b)
		return p, payload, d
	case TypeResync:
		p, d := ParseResync(b)
		return p, nil, d
	case TypeNACK:
		p, d := ParseNack(b)
		return p, nil, d
	default:
		p, d := ParseAck(b)
		return p, nil, d
	}
}

func TestBytesAreThoseOfTheSpecification(t *testing.T) {
	for name, f := range formats(t) {
		t.Run(name, func(t *testing.T) {
			if got := append(appendPacket(t, f.packet), f.payload...); !bytes.Equal(got, f.bytes) {
				t.Errorf("encoded\n%x, want\n%x", got, f.bytes)
			}
			got, payload, d := parsePacket(f.bytes)
			if d != DropNone {
				t.Fatalf("parse: %v", d)
			}
			if diff := cmp.Diff(f.packet, got); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
			if !bytes.Equal(payload, f.payload) {
				t.Errorf("payload %x, want %x", payload, f.payload)
			}
			if cid, ok := PeekCID(f.bytes); !ok || cid != 0xabcd {
				t.Errorf("PeekCID %#x %v", cid, ok)
			}
		})
	}
}

func TestBaseHeaderGolden(t *testing.T) {
	h := goldenOf(TypePushData)
	if got, want := h.Append(nil), vector(t, "base_hdr"); !bytes.Equal(got, want) {
		t.Errorf("encoded %x, want %x", got, want)
	}
}

// TestTruncatedPacketsAreRefused parses every prefix of every packet: all but those that are complete packets
// themselves are refused.
func TestTruncatedPacketsAreRefused(t *testing.T) {
	for name, f := range formats(t) {
		for n := range f.bytes {
			_, _, d := parsePacket(f.bytes[:n])
			complete := false // formats whose payload has no length of its own
			switch f.packet.(type) {
			case PullRequest:
				complete = n >= PullRequestLen
			case PullData:
				complete = n >= PullDataLen
			}
			if complete != (d == DropNone) {
				t.Errorf("%s: %d of %d bytes: %v", name, n, len(f.bytes), d)
			}
		}
	}
	if _, ok := PeekCID([]byte{0x10, 0, 0}); ok {
		t.Error("PeekCID accepted three bytes")
	}
}

func TestPacketsWithATrailingByteAreRefused(t *testing.T) {
	for name, f := range formats(t) {
		_, _, d := parsePacket(append(bytes.Clone(f.bytes), 0))
		switch f.packet.(type) {
		case PullRequest, PullData:
		default:
			if d != DropLength {
				t.Errorf("%s with a trailing byte: %v, want %v", name, d, DropLength)
			}
		}
	}
}

func TestReservedVersionsTypesAndProtocolsAreDropped(t *testing.T) {
	base := vector(t, "push_data len=24")
	for v := range 16 {
		b := bytes.Clone(base)
		b[0] = byte(v)<<4 | b[0]&15
		want := DropVersion
		if v == Version {
			want = DropNone
		}
		if _, _, d := parsePacket(b); d != want {
			t.Errorf("version %d: %v, want %v", v, d, want)
		}
	}
	for typ := range 16 {
		b := bytes.Clone(base)
		b[7] = b[7]&^0x1e | byte(typ)<<1
		_, _, d := parsePacket(b)
		if reserved := d == DropPacketType; reserved == PacketType(typ).Valid() {
			t.Errorf("type %d: %v", typ, d)
		}
	}
	for p := range 8 {
		b := bytes.Clone(base)
		b[7] = b[7]&^0xe0 | byte(p)<<5
		want := DropProtocol
		if Protocol(p).Valid() {
			want = DropNone
		}
		if _, _, d := parsePacket(b); d != want {
			t.Errorf("protocol %d: %v, want %v", p, d, want)
		}
	}
	r := Resync{goldenOf(TypeResync), ResyncCIE, TypePushData, 0}
	for typ := range 16 {
		r.Original = PacketType(typ)
		want := DropResyncType
		if r.Original == TypePullRequest || r.Original == TypePullData || r.Original == TypePushData {
			want = DropNone
		}
		if _, d := ParseResync(r.Append(nil)); d != want {
			t.Errorf("resync of type %d: %v, want %v", typ, d, want)
		}
	}
}

// TestRUETopBit checks that the bit on which figure and text disagree is never sent.
func TestRUETopBit(t *testing.T) {
	a := Ack{Congestion: Congestion{RUE: ^uint32(0)}}
	if got, _ := ParseAck(a.Append(nil)); got.RUE != MaxAckRUE {
		t.Errorf("ACK RUE %#x", got.RUE)
	}
	n := Nack{Congestion: Congestion{RUE: ^uint32(0)}}
	if got, _ := ParseNack(n.Append(nil)); got.RUE != MaxNackRUE {
		t.Errorf("NACK RUE %#x", got.RUE)
	}
}

func TestEachRNRIndexHasItsTimeout(t *testing.T) {
	for index, ms := range map[uint8]float64{0: 655.36, 1: 0.01, 14: 1.28, 31: 491.52, 33: 0.01} {
		if got := RNRTimeout(index); got != int64(ms*1e6+0.5) {
			t.Errorf("index %d: %d ns, want %v ms", index, got, ms)
		}
	}
}

// TestEveryReasonAndCodeHasItsName checks that every reason and code has a name of its own.
func TestEveryReasonAndCodeHasItsName(t *testing.T) {
	seen := make(map[string]bool)
	for d := range DropCount {
		s := d.String()
		if seen[s] || strings.HasPrefix(s, "drop ") {
			t.Errorf("drop %d is called %q", d, s)
		}
		seen[s] = true
	}
	for v := range uint8(16) {
		if named := !strings.HasPrefix(PacketType(v).String(), "reserved"); named != PacketType(v).Valid() {
			t.Errorf("type %d is called %q", v, PacketType(v))
		}
		if named := !strings.HasPrefix(NackCode(v).String(), "reserved"); named != NackCode(v).Valid() {
			t.Errorf("NACK code %d is called %q", v, NackCode(v))
		}
		if named := !strings.HasPrefix(ResyncCode(v).String(), "reserved"); named != (v >= 1 && v <= 7) {
			t.Errorf("Resync code %d is called %q", v, ResyncCode(v))
		}
		if named := !strings.HasPrefix(Protocol(v).String(), "reserved"); named != Protocol(v).Valid() {
			t.Errorf("protocol %d is called %q", v, Protocol(v))
		}
	}
}

// FuzzParse decodes anything; what decodes must survive encoding and decoding again.
func FuzzParse(f *testing.F) {
	for _, v := range formats(f) {
		f.Add(v.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, payload, d := parsePacket(b)
		if again := Payload(b); !bytes.Equal(again, payload) || (again == nil) != (payload == nil) {
			t.Fatalf("payload %x alone, %x with its header", again, payload)
		}
		if d != DropNone {
			return
		}
		switch q := p.(type) { // a bit that is received but never sent
		case Ack:
			q.RUE &= MaxAckRUE
			p = q
		case Nack:
			q.RUE &= MaxNackRUE
			p = q
		}
		again, payload2, d := parsePacket(append(appendPacket(t, p), payload...))
		if d != DropNone {
			t.Fatalf("%+v: encoded and refused: %v", p, d)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("changed by encoding:\n%s", diff)
		}
		if !bytes.Equal(payload, payload2) {
			t.Fatal("payload changed")
		}
	})
}

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

// TestEveryFieldHoldsItsLargestValue: every field holds its largest value, one that is too large is
// cut, and neither touches another field.
func TestEveryFieldHoldsItsLargestValue(t *testing.T) {
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

// TestTheCommonFieldsAreEnoughToTellTheType: as many bytes as the common fields take are enough to
// tell the type, and the first word to tell the connection.
func TestTheCommonFieldsAreEnoughToTellTheType(t *testing.T) {
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

// TestAcknowledgementsHaveNoBaseHeader: acknowledgements and reserved types have none.
func TestAcknowledgementsHaveNoBaseHeader(t *testing.T) {
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

// TestEachParserTakesItsOwnFormatOnly: each parser takes its own format and no other.
func TestEachParserTakesItsOwnFormatOnly(t *testing.T) {
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

package cm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parse decodes any message to a pointer to its struct.
func parse(b []byte) (Message, error) {
	t, err := PeekType(b)
	if err != nil {
		return nil, err
	}
	switch t {
	case TypeHello:
		m, err := Parse[Hello](b)
		return &m, err
	case TypeREQ:
		m, err := Parse[REQ](b)
		return &m, err
	case TypeREP:
		m, err := Parse[REP](b)
		return &m, err
	case TypeRTU:
		m, err := Parse[RTU](b)
		return &m, err
	case TypeREJ:
		m, err := Parse[REJ](b)
		return &m, err
	case TypeDREQ:
		m, err := Parse[DREQ](b)
		return &m, err
	case TypeREKEY:
		m, err := Parse[REKEY](b)
		return &m, err
	case TypeREKEYACK:
		m, err := Parse[REKEYACK](b)
		return &m, err
	case TypeREKEYREQ:
		m, err := Parse[REKEYREQ](b)
		return &m, err
	case TypeBYE:
		m, err := Parse[BYE](b)
		return &m, err
	case TypePORTS:
		m, err := Parse[PORTS](b)
		return &m, err
	default:
		m, err := Parse[DREP](b)
		return &m, err
	}
}

func seq(from byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

func gid4(a, b, c, d byte) (g [16]byte) {
	g[10], g[11] = 0xff, 0xff
	g[12], g[13], g[14], g[15] = a, b, c, d
	return g
}

// samples are the messages of testdata/messages.hex, by name.
func samples() map[string]Message {
	offer := func(version uint8) Offer {
		return Offer{
			CID: 0x1abcde, DataPSN: 0x11223344, ReqPSN: 0x55667788, RSN: 0x99aabbcc, MTU: 4096, Ordered: version == 0,
			SA: SA{Version: version, SPI: 0x9a345678, Key: seq(0xd0, keyLen(version))}, Time: 0x0102030405060708,
		}
	}
	sharded := func(shard uint8) Offer {
		o := offer(0)
		o.Shard = shard
		return o
	}
	return map[string]Message{
		"hello-empty": &Hello{Host: 1, Instance: 0x1122334455667789},
		"hello-two": &Hello{Host: 2, Instance: 1, Endpoints: []Endpoint{
			{7, gid4(10, 0, 0, 2), 0x020001, 0}, {8, gid4(10, 0, 0, 2), 0x020102, 0},
		}},
		"hello-shards": &Hello{Host: 2, Instance: 1, Endpoints: []Endpoint{
			{7, gid4(10, 0, 0, 2), 0x020001, 0}, {7, gid4(10, 0, 0, 3), 0x020002, 15},
		}},
		"req": &REQ{
			SenderID: 0x01020304, Service: 0x1122334455667788, Tenant: 7, Function: 0x010002, PeerFunction: 0x020001,
			SGID: gid4(10, 0, 0, 1), DGID: gid4(10, 0, 0, 2), QPN: 0x23, Offer: offer(0), Private: []byte("hello"),
		},
		"rep-shard":      &REP{SenderID: 9, ReceiverID: 0x01020304, QPN: 0x42, Offer: sharded(3)},
		"rep":            &REP{SenderID: 9, ReceiverID: 0x01020304, QPN: 0x42, Offer: offer(1), Private: seq(0, MaxPrivate)},
		"rep-bare":       &REP{SenderID: 9, ReceiverID: 0x01020304, QPN: 0x42, Offer: offer(0)},
		"rtu":            &RTU{0x01020304, 9},
		"rej":            &REJ{9, 0x01020304, ReasonConsumer, 28, []byte("no")},
		"rej-cancel":     &REJ{0x01020304, 0, ReasonCanceled, 0, nil},
		"dreq":           &DREQ{9, 0x01020304, ReasonDisconnect},
		"drep":           &DREP{0x01020304, 9},
		"rekey":          &REKEY{7, ClassFalcon, 0, SA{Version: 0, SPI: 0x9a345678, Key: seq(0xd0, 16)}},
		"rekey-256":      &REKEY{7, ClassGateway, 0, SA{Version: 3, SPI: 0x1a345678, Key: seq(0xd0, 32)}},
		"rekey-shard":    &REKEY{7, ClassGateway, 15, SA{Version: 0, SPI: 0x9a345678, Key: seq(0xd0, 16)}},
		"rekeyack-shard": &REKEYACK{7, ClassFalcon, 1, 0x9a345678, 0x0102030405060708},
		"rekeyreq-shard": &REKEYREQ{7, ClassGateway, 2, 0},
		"rekeyack":       &REKEYACK{7, ClassFalcon, 0, 0x9a345678, 0x0102030405060708},
		"rekeyreq":       &REKEYREQ{7, ClassGateway, 0, 0},
		"bye":            &BYE{},
		"ports-none":     &PORTS{},
		"ports":          &PORTS{[]PortAddress{{7, gid4(10, 0, 0, 2), 0x020001, 1432}, {8, [16]byte(seq(0xa0, 16)), 0x020102, 8932}}},
	}
}

func TestMessagesAreThoseOfTheGoldenBytes(t *testing.T) {
	text, err := os.ReadFile("testdata/messages.hex")
	if err != nil {
		t.Fatal(err)
	}
	all := samples()
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		want, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		m := all[name]
		if m == nil {
			t.Fatalf("no sample named %q", name)
		}
		delete(all, name)
		if got := Encode(m); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n%x\nwant\n%x", name, got, want)
		}
		back, err := parse(want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if d := cmp.Diff(m, back); d != "" {
			t.Errorf("%s: decoded differs (-want +got):\n%s", name, d)
		}
	}
	for name, m := range all {
		t.Errorf("not in testdata/messages.hex:\n%s %x", name, Encode(m))
	}
}

func TestAMessageOfTheWrongLengthIsRefused(t *testing.T) {
	for name, m := range samples() {
		whole := Encode(m)
		for n := range len(whole) {
			cut := bytes.Clone(whole[:n])
			if _, err := parse(cut); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%s cut to %d of %d bytes: error %v", name, n, len(whole), err)
			}
			if n >= headerLen { // with a length field that agrees
				cut[2], cut[3] = byte(n>>8), byte(n)
				if _, err := parse(cut); !errors.Is(err, ErrProtocol) {
					t.Fatalf("%s of %d of %d bytes: error %v", name, n, len(whole), err)
				}
			}
		}
		long := append(bytes.Clone(whole), 0)
		long[2], long[3] = byte(len(long)>>8), byte(len(long))
		if _, err := parse(long); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s with a byte too many: error %v", name, err)
		}
	}
}

func TestAMessageWithAnInvalidValueIsRefused(t *testing.T) {
	req := func(f func(*REQ)) []byte {
		m := *samples()["req"].(*REQ)
		f(&m)
		return Encode(&m)
	}
	patch := func(name string, at int, v ...byte) []byte {
		b := Encode(samples()[name])
		copy(b[at:], v)
		return b
	}
	many := Hello{Host: 1, Instance: 1, Endpoints: make([]Endpoint, MaxEndpoints+1)}
	for _, tt := range []struct {
		why string
		b   []byte
	}{
		{"speaks version 1 of the connection managers' protocol, this NIC version 2: install the same release", patch("rtu", 0, 1)},
		{"unknown type", patch("rtu", 1, 99)},
		{"unknown type", patch("rtu", 1, 0)},
		{"length field", patch("rtu", 2, 0, 13)},
		{"connection ID 0", req(func(m *REQ) { m.SenderID = 0 })},
		{"function 0x1000000", req(func(m *REQ) { m.Function = 1 << 24 })},
		{"function 0x1000000", req(func(m *REQ) { m.PeerFunction = 1 << 24 })},
		{"QPN 0x1000000", req(func(m *REQ) { m.QPN = 1 << 24 })},
		{"shard 16", req(func(m *REQ) { m.Offer.Shard = 16 })},
		{"MTU 255", req(func(m *REQ) { m.Offer.MTU = 255 })},
		{"MTU 32897", req(func(m *REQ) { m.Offer.MTU = MaxMTU + 1 })},
		{"PSP version 4", req(func(m *REQ) { m.Offer.SA.Version = 4 })},
		{"SPI 0", req(func(m *REQ) { m.Offer.SA.SPI = 0 })},
		{"SPI 0x80000000", req(func(m *REQ) { m.Offer.SA.SPI = 1 << 31 })},
		{"class 2", patch("rekey", 8, 2)},
		{"PSP version 4", patch("rekey", 9, 4)},
		{"reserved byte", patch("rekey", 11, 1)},
		{"SPI 0", patch("rekey", 12, 0, 0, 0, 0)},
		{"reserved byte", patch("rekey", 32, 1)}, // version 0 has 16 bytes of key
		{"class 2", patch("rekeyack", 8, 2)},
		{"reserved byte", patch("rekeyack", 10, 1)},
		{"class 2", patch("rekeyreq", 8, 2)},
		{"reserved byte", req(func(m *REQ) { m.Offer.SA.Key = seq(1, 32) })}, // version 0 has 16 bytes
		{"private data", req(func(m *REQ) { m.Private = seq(0, MaxPrivate+1) })},
		{"reason 12", patch("dreq", 12, 0, 12)},
		{"reason 0", patch("dreq", 12, 0, 0)},
		{"reserved byte", patch("dreq", 15, 1)},
		{"names no connection", patch("rej-cancel", 4, 0, 0, 0, 0)},
		{"2049 functions", Encode(&many)},
		{"shard 16", patch("hello-two", 4+16+20, 16)},
		{"shard 16", patch("rekey", 10, 16)},
		{"shard 255", patch("rekeyack", 9, 255)},
		{"shard 16", patch("rekeyreq", 9, 16)},
		{"48 bytes for 1 functions, want 24", patch("hello-two", 17, 1)},
		{"reserved byte", patch("hello-two", 5, 1)},
	} {
		_, err := parse(tt.b)
		if err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("want an error with %q, got %v", tt.why, err)
		}
	}
}

func TestHelloOfMostFunctionsFitsALink(t *testing.T) {
	m := Hello{Host: 1, Instance: 1, Endpoints: make([]Endpoint, MaxEndpoints)}
	b := Encode(&m)
	if len(b) > 64<<10-1 {
		t.Fatalf("%d bytes", len(b))
	}
	if _, err := Parse[Hello](b); err != nil {
		t.Fatal(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range samples() {
		f.Add(Encode(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if got := Encode(m); !bytes.Equal(got, b) {
			t.Fatalf("decoded and encoded again\n%x\nwas\n%x", got, b)
		}
	})
}

// TestAnOfferCarriesIRDOrderAndErrorMode: the READs a side takes share a byte with the ordering and
// the error mode.
func TestAnOfferCarriesIRDOrderAndErrorMode(t *testing.T) {
	for _, want := range []Offer{{IRD: MaxIRD, Ordered: true}, {IRD: 1}, {IRD: 32, Ordered: true}, {CompleteInError: true}, {IRD: MaxIRD, CompleteInError: true, Ordered: true}, {}} {
		want.CID, want.MTU, want.SA = 5, 1024, SA{SPI: 9, Key: make([]byte, 16)}
		req := REQ{SenderID: 1, QPN: 4, Offer: want}
		m, err := Parse[REQ](Encode(&req))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Offer; got.IRD != want.IRD || got.Ordered != want.Ordered || got.CompleteInError != want.CompleteInError {
			t.Errorf("%+v became %+v", want, got)
		}
	}
	over := Offer{IRD: 200, MTU: 1024}
	if b := over.append(nil); b[18] != MaxIRD<<irdShift {
		t.Errorf("flags %#x of an IRD above the maximum", b[18])
	}
}

// TestTheLargestAndSmallestValidValuesAreTaken: the largest and smallest valid values in messages
// are accepted.
func TestTheLargestAndSmallestValidValuesAreTaken(t *testing.T) {
	for name, change := range map[string]func(*REQ){
		"function":      func(m *REQ) { m.Function = max24 },
		"peer function": func(m *REQ) { m.PeerFunction = max24 },
		"QPN":           func(m *REQ) { m.QPN = max24 },
		"shard":         func(m *REQ) { m.Offer.Shard = MaxShards - 1 },
		"CID":           func(m *REQ) { m.Offer.CID = max24 },
		"least MTU":     func(m *REQ) { m.Offer.MTU = MinMTU },
		"most MTU":      func(m *REQ) { m.Offer.MTU = MaxMTU },
		"version":       func(m *REQ) { m.Offer.SA = SA{Version: 3, SPI: 1, Key: seq(1, 32)} },
		"no data":       func(m *REQ) { m.Private = nil },
	} {
		want := *samples()["req"].(*REQ)
		change(&want)
		got, err := Parse[REQ](Encode(&want))
		if err != nil || string(Encode(&got)) != string(Encode(&want)) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, m := range map[string]*PORTS{
		"as many as there may be": {make([]PortAddress, MaxPorts)}, "one more": {make([]PortAddress, MaxPorts+1)},
		"the last function": {[]PortAddress{{Function: max24}}}, "one after it": {[]PortAddress{{Function: max24 + 1}}},
	} {
		_, err := Parse[PORTS](Encode(m))
		if want := strings.HasPrefix(name, "one"); (err != nil) != want {
			t.Errorf("ports, %s: %v", name, err)
		}
	}
	if _, err := PeekType(nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("nothing: %v", err)
	}
	for n := range headerLen + 1 {
		b := []byte{Version, byte(TypeRTU), 0, headerLen}[:n]
		if _, err := PeekType(b); (err == nil) != (n == headerLen) {
			t.Errorf("%d bytes of header: %v", n, err)
		}
	}
}

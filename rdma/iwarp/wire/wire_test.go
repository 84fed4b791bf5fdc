package wire

import (
	"bytes"
	"strings"
	"testing"
)

// TestOpcodesAreThoseOfTheSpecification holds RFC 5040 figure 5 and RFC 7306 figure 2.
func TestOpcodesAreThoseOfTheSpecification(t *testing.T) {
	tagged := map[Opcode]bool{0: true, 2: true}
	queue := map[Opcode]uint32{1: 1, 3: 0, 4: 0, 5: 0, 6: 0, 7: 2, 8: 0, 9: 0, 10: 1, 11: 3}
	names := make(map[string]bool)
	for op := range Opcode(16) {
		_, untagged := queue[op]
		if op.Valid() != (tagged[op] || untagged) {
			t.Errorf("%v is valid: %t", op, op.Valid())
		}
		if strings.HasPrefix(op.String(), "reserved") == op.Valid() || names[op.String()] {
			t.Errorf("opcode %d is called %q", op, op)
		}
		names[op.String()] = true
		if !op.Valid() {
			if b := (&Header{Opcode: op}).Append(nil); len(b) != 0 {
				t.Errorf("%v: encoded %x", op, b)
			}
			continue
		}
		info := op.Info()
		if info.Tagged != tagged[op] || info.Queue != queue[op] ||
			info.Invalidate != (op == 4 || op == 6) || info.Solicited != (op == 5 || op == 6 || op == 9) {
			t.Errorf("%v: %+v", op, info)
		}
	}
}

// TestEveryPrefixOfASegmentIsRefused but those that are segments with less data.
func TestEveryPrefixOfASegmentIsRefused(t *testing.T) {
	for name, s := range segments(t) {
		b, header := s.append(nil), len(s.header.Append(nil))
		_, data := s.message.([]byte)
		data = data && s.header.Opcode != OpImmediate && s.header.Opcode != OpImmediateSE
		for n := range b {
			if _, err := parseSegment(b[:n:n]); (err == nil) != (data && n >= header) || err != nil && err != LengthMismatch {
				t.Errorf("%s: %d of %d bytes: %v", name, n, len(b), err)
			}
		}
	}
}

// TestAMessageOfFixedLengthIsNoLonger: RDMAP has no buffer for more.
func TestAMessageOfFixedLengthIsNoLonger(t *testing.T) {
	for name, s := range segments(t) {
		switch s.header.Opcode {
		case OpReadRequest, OpImmediate, OpImmediateSE, OpAtomicRequest, OpAtomicResponse:
			if _, err := parseSegment(append(s.append(nil), 0)); err != MessageTooLong {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestHeadersAreChecked: each wrong field has its own cause, and the outer layer is looked at first.
func TestHeadersAreChecked(t *testing.T) {
	all := golden(t)
	for _, c := range []struct {
		ulpdu  string
		change func([]byte)
		want   Cause
	}{
		{"WRITE", func(b []byte) { b[0] = 0xc0 }, TaggedVersion},
		{"WRITE", func(b []byte) { b[0], b[1] = 0xc2, 0xff }, TaggedVersion},
		{"SEND", func(b []byte) { b[0] = 0x43 }, UntaggedVersion},
		{"SEND", func(b []byte) { b[1] = 0x03 }, InvalidVersion},
		{"SEND", func(b []byte) { b[1] = 0x8f }, InvalidVersion},
		{"SEND", func(b []byte) { b[1] = 0x4c }, UnexpectedOpcode},
		{"SEND", func(b []byte) { b[1] = 0x4f }, UnexpectedOpcode},
		{"SEND", func(b []byte) { b[1] = 0x40 }, UnexpectedOpcode},  // an untagged WRITE
		{"WRITE", func(b []byte) { b[1] = 0x43 }, UnexpectedOpcode}, // a tagged SEND
		{"SEND", func(b []byte) { b[9] = 1 }, InvalidQueue},
		{"SEND", func(b []byte) { b[6] = 1 }, InvalidQueue},
		{"READ Request", func(b []byte) { b[9] = 0 }, InvalidQueue},
		{"Atomic Request, CmpSwap", func(b []byte) { b[UntaggedLen+3] = 1 }, UnexpectedOpcode},
	} {
		b := bytes.Clone(all[c.ulpdu])
		c.change(b)
		if _, err := parseSegment(b); err != c.want {
			t.Errorf("%s as %x: %v, want %v", c.ulpdu, b, err, c.want)
		}
	}
}

// TestReservedBitsAreIgnored: a peer of a later version may set them, and a field that an opcode
// does not use.
func TestReservedBitsAreIgnored(t *testing.T) {
	for name, s := range segments(t) {
		b := s.append(nil)
		b[0] |= 0x3c
		b[1] |= 0x30
		if info := s.header.Opcode.Info(); !info.Tagged && !info.Invalidate {
			copy(b[2:6], "\xff\xff\xff\xff")
		}
		switch m := s.message.(type) {
		case AtomicRequest:
			copy(b[UntaggedLen:], "\xff\xff\xff\xf0")
			b[UntaggedLen+3] |= byte(m.Opcode)
			if m.Opcode == FetchAdd {
				copy(b[UntaggedLen+36:], bytes.Repeat([]byte{0x77}, 16)) // compare data and mask
			}
		case Terminate:
			b[UntaggedLen+2] |= 0x1f
			b[UntaggedLen+3] = 0xff
		}
		got, err := parseSegment(b)
		if d := diff(s, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
}

// TestTerminateTellsItsCauseWhateverFollows: the headers behind it may be cut, missing, of another
// message or followed by more.
func TestTerminateTellsItsCauseWhateverFollows(t *testing.T) {
	send := segments(t)["SEND"].header
	ddp := send.Append(nil)
	read := golden(t)["READ Request"]
	for name, c := range map[string]struct {
		message []byte
		want    Terminate
		err     error
	}{
		"a layer that is not known": {unhex(t, "fedc 0000"), Terminate{Cause: 0xfedc}, nil},
		"bytes behind it":           {unhex(t, "1202 0000 ffff"), Terminate{Cause: NoBuffer}, nil},
		"M and R without D":         {unhex(t, "1202 a000"), Terminate{Cause: NoBuffer}, nil},
		"D without a length":        {unhex(t, "1202 4000 00"), Terminate{Cause: NoBuffer}, LengthMismatch},
		"D without a header":        {unhex(t, "1202 4000 0000"), Terminate{Cause: NoBuffer}, LengthMismatch},
		"D with half a header":      {append(unhex(t, "1202 4000 0000"), ddp[:17]...), Terminate{Cause: NoBuffer}, LengthMismatch},
		"D without M":               {append(unhex(t, "1202 4000 1234"), ddp...), Terminate{Cause: NoBuffer, DDP: ddp}, nil},
		"R with the header of a SEND, as siw sends": {
			append(unhex(t, "0109 e000 0015"), ddp...), Terminate{Cause: CannotInvalidate, DDP: ddp, LengthValid: true, Length: 21}, nil,
		},
		"R with half a READ Request": {append(unhex(t, "0101 e000 002e"), read[:40]...), Terminate{Cause: OutOfBounds}, LengthMismatch},
	} {
		got, err := ParseTerminate(c.message)
		if d := diff(c.want, got); err != c.err || d != "" {
			t.Errorf("%s: %v, want %v (-want +got):\n%s", name, err, c.err, d)
		}
	}
	for n := range 4 {
		if _, err := ParseTerminate(make([]byte, n)); err != LengthMismatch {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	long := Terminate{Cause: OutOfBounds, DDP: read[:UntaggedLen], ReadRequest: read[UntaggedLen:]}
	if n := len(long.Append(nil)); n != MaxTerminateLen {
		t.Errorf("the longest message has %d bytes, not %d", n, MaxTerminateLen)
	}
}

// TestCausesAreNamed: each has a name of its own that begins with its layer; one that is not known
// tells its numbers.
func TestCausesAreNamed(t *testing.T) {
	layers := []string{LayerRDMAP: "RDMAP: ", LayerDDP: "DDP: ", LayerMPA: "MPA: "}
	seen := make(map[string]Cause)
	for c, name := range causeNames {
		if other, ok := seen[name]; ok {
			t.Errorf("%#x and %#x are both called %q", uint16(c), uint16(other), name)
		}
		seen[name] = c
		if int(c.Layer()) >= len(layers) || !strings.HasPrefix(c.Error(), layers[c.Layer()]) {
			t.Errorf("%#x of layer %d is called %q", uint16(c), c.Layer(), c)
		}
	}
	if got := Cause(0x31fe).Error(); got != "layer 3, type 1, code 0xfe" {
		t.Errorf("a cause that is not known is called %q", got)
	}
}

func TestNoAllocations(t *testing.T) {
	s := segments(t)
	headers := s["SEND with Invalidate"].header
	cmpSwap := s["Atomic Request, CmpSwap"].message.(AtomicRequest)
	terminate := s["Terminate, READ Request"].message.(Terminate)
	frame := frames["request, revision 2, peer to peer, SEND, WRITE or READ"]
	ulpdu := make([]byte, 1000)
	buf, plain := make([]byte, 0, 2048), make([]byte, FPDULen(len(ulpdu)))
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range map[string]func(){
		"frame": func() { _, _, err := ParseFrame(frame.Append(buf[:0]), false); check(err) },
		"FPDU": func() {
			PutFPDU(plain, len(ulpdu), true)
			_, _, err := ParseFPDU(plain, true)
			check(err)
		},
		"FPDU with markers": func() { AppendMarkedFPDU(buf[:0], ulpdu, 300, true) },
		"header":            func() { _, _, err := ParseHeader(headers.Append(buf[:0])); check(err) },
		"READ Request":      func() { _, err := ParseReadRequest(readRequest.Append(buf[:0])); check(err) },
		"Atomic Request":    func() { _, err := ParseAtomicRequest(cmpSwap.Append(buf[:0])); check(err) },
		"Terminate":         func() { _, err := ParseTerminate(terminate.Append(buf[:0])); check(err) },
		"what is refused": func() {
			if _, _, err := ParseHeader(ulpdu); err != UntaggedVersion {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func FuzzSegment(f *testing.F) {
	for _, s := range segments(f) {
		f.Add(s.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		s, err := parseSegment(b)
		if !bytes.Equal(b, before) {
			t.Fatal("parsing changed the segment")
		}
		if err != nil {
			if _, ok := err.(Cause); !ok {
				t.Fatalf("%v is no cause", err)
			}
			return
		}
		encoded := s.append(nil)
		again, err := parseSegment(encoded)
		if d := diff(s, again); err != nil || len(encoded) > len(b) || d != "" {
			t.Fatalf("%d bytes, encoded %d, %v (-first +again):\n%s", len(b), len(encoded), err, d)
		}
	})
}

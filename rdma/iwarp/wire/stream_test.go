package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

// TestEveryPrefixOfAFrameIsIncomplete: nothing is wrong with the beginning of a frame.
func TestEveryPrefixOfAFrameIsIncomplete(t *testing.T) {
	for name, f := range frames {
		b := f.Append(nil)
		for n := range b {
			if _, _, err := ParseFrame(b[:n:n], f.Reply); err != ErrIncomplete {
				t.Errorf("%s: %d of %d bytes: %v", name, n, len(b), err)
			}
		}
	}
}

// TestAStreamThatIsNotMPAIsRefusedAtOnce: the first byte that differs from the key decides, so that
// nobody waits for more bytes of a peer that speaks another protocol.
func TestAStreamThatIsNotMPAIsRefusedAtOnce(t *testing.T) {
	b := (&Frame{Revision: 1}).Append(nil)
	for at := range keyLen {
		c := bytes.Clone(b)
		c[at] ^= 0x20
		for n := range len(c) + 1 {
			_, _, err := ParseFrame(c[:n], false)
			if want := n > at; (err == InvalidFrame) != want {
				t.Errorf("byte %d changed, %d bytes there: %v", at, n, err)
			}
		}
	}
	if _, _, err := ParseFrame(b, true); err != InvalidFrame {
		t.Errorf("a Request for a Reply: %v", err)
	}
}

func TestFramesAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		frame string // behind the key
		want  error
	}{
		"revision 0":                          {"00 00 0000", InvalidFrame},
		"revision 3":                          {"00 03 0000", InvalidFrame},
		"private data of 513 bytes":           {"00 01 0201", InvalidFrame},
		"private data of 512 bytes":           {"00 01 0200", ErrIncomplete},
		"enhanced, without room for it":       {"10 02 0003 000000", InvalidFrame},
		"revision 2 without enhanced data":    {"00 02 0000", nil},
		"reserved bits":                       {"0f 02 0000", nil},
		"the reserved bit S of revision 1":    {"10 01 0000", nil},
		"the reserved bit R of a Request":     {"20 01 0000", nil},
		"enhanced data and no private data":   {"10 02 0004 00010001", nil},
		"enhanced data, the rest on its way":  {"10 02 0006 00010001", ErrIncomplete},
		"enhanced data is part of 512 bytes":  {"10 02 0200", ErrIncomplete},
		"enhanced data is part of 513 bytes ": {"10 02 0201", InvalidFrame},
	} {
		f, n, err := ParseFrame(append([]byte(requestKey), unhex(t, c.frame)...), false)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil && (f.Reject || f.HasEnhanced != (n > FrameHeaderLen)) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestPrivateDataIsCutToWhatFits: so are IRD and ORD, which touch no flag.
func TestPrivateDataIsCutToWhatFits(t *testing.T) {
	f := Frame{Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 0xffff, ORD: 0xffff}, Private: make([]byte, 600)}
	b := f.Append(nil)
	got, n, err := ParseFrame(b, false)
	if err != nil || n != MaxFrameLen || len(got.Private) != f.MaxPrivate() || got.Enhanced != (Enhanced{IRD: AnyDepth, ORD: AnyDepth}) {
		t.Errorf("%d bytes, %v: %+v", n, err, got.Enhanced)
	}
	f = Frame{Revision: 1, HasEnhanced: true, Private: make([]byte, 600)}
	if got, n, err := ParseFrame(f.Append(nil), false); err != nil || n != MaxFrameLen || got.HasEnhanced || len(got.Private) != MaxPrivate {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestTheCRCIsThatOfTheSpecification: the examples of RFC 3720 B.4, in the order of bytes that it gives, and a model of single
// bits.
func TestTheCRCIsThatOfTheSpecification(t *testing.T) {
	ascending, descending := make([]byte, 32), make([]byte, 32)
	for i := range 32 {
		ascending[i], descending[i] = byte(i), byte(31-i)
	}
	for want, data := range map[string][]byte{
		"aa36918a": make([]byte, 32), "43aba862": bytes.Repeat([]byte{0xff}, 32), "4e79dd46": ascending, "5cdb3f11": descending,
	} {
		if !sealed(append(data, unhex(t, want)...)) {
			t.Errorf("the CRC of %x is not %s", data, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		sum := ^uint32(0)
		for _, c := range data {
			sum ^= uint32(c)
			for range 8 {
				sum = sum>>1 ^ 0x82f63b78*(sum&1)
			}
		}
		if got := crc32.Checksum(data, castagnoli); got != ^sum {
			t.Fatalf("%#x, want %#x", got, ^sum)
		}
	})
}

// TestEveryChangedBitIsNoticed: the CRC detects every changed bit. Without CRC its four bytes are
// ignored.
func TestEveryChangedBitIsNoticed(t *testing.T) {
	ulpdu := golden(t)["SEND"]
	for _, pos := range []uint64{0, 500, 4} {
		marked := AppendMarkedFPDU(nil, ulpdu, pos, true)
		for bit := range len(marked) * 8 {
			c := bytes.Clone(marked)
			c[bit/8] ^= 0x80 >> (bit % 8)
			if sealed(c) {
				t.Errorf("pos %d, bit %d changed", pos, bit)
			}
		}
	}
	plain := fpdu(ulpdu, true)
	for bit := range len(plain) * 8 {
		c := bytes.Clone(plain)
		c[bit/8] ^= 0x80 >> (bit % 8)
		if got, _, err := ParseFPDU(c, true); err == nil {
			t.Errorf("bit %d changed: %x", bit, got)
		}
		if _, _, err := ParseFPDU(c, false); bit >= 8*FPDUHeaderLen && err != nil {
			t.Errorf("bit %d changed, without CRC: %v", bit, err)
		}
	}
}

// TestFPDUsFillASegment: the FPDU of the longest ULPDU that MULPDU allows fits into a TCP segment
// wherever its markers are, and with one of four bytes more it does not fit everywhere.
func TestFPDUsFillASegment(t *testing.T) {
	longest := func(n int) (most int) {
		for pos := uint64(0); pos < MarkerInterval; pos += 4 {
			most = max(most, MarkedFPDULen(n, pos))
		}
		return most
	}
	for mss := range 3000 {
		if n := MULPDU(mss, false); n > 0 && (FPDULen(n) > mss || FPDULen(n+4) <= mss) || n == 0 && FPDULen(1) <= mss-2 {
			t.Errorf("MSS %d: %d bytes", mss, n)
		}
		if n := MULPDU(mss, true); n > 0 && longest(n) > mss {
			t.Errorf("MSS %d with markers: %d bytes", mss, n)
		}
	}
	// RFC 5044 §4.5: EMSS - (6 + 4*Ceiling(EMSS/512) + EMSS mod 4).
	for mss, want := range map[int][2]int{1460: {1454, 1442}, 1461: {1454, 1442}, 8948: {8942, 8870}, 1 << 20: {MaxULPDU, MaxMarkedULPDU}, 5: {0, 0}} {
		if got := [2]int{MULPDU(mss, false), MULPDU(mss, true)}; got != want {
			t.Errorf("MSS %d: %v, want %v", mss, got, want)
		}
	}
}

// TestTheLongestFPDUs: lengths of 16 bits do not overflow.
func TestTheLongestFPDUs(t *testing.T) {
	ulpdu := bytes.Repeat([]byte{1, 2, 3, 4, 5}, MaxULPDU/5)
	b := fpdu(ulpdu, true)
	if got, n, err := ParseFPDU(b, true); err != nil || n != len(b) || !bytes.Equal(got, ulpdu) {
		t.Errorf("%d bytes, %v", n, err)
	}
	for pos := uint64(0); pos < MarkerInterval; pos += 4 {
		b := AppendMarkedFPDU(nil, ulpdu[:MaxMarkedULPDU], pos, true)
		if got, err := unmark(b, pos); err != nil || !bytes.Equal(got, ulpdu[:MaxMarkedULPDU]) {
			t.Errorf("pos %d: %d bytes, %v", pos, len(got), err)
		}
	}
}

// unmark returns the ULPDU of an FPDU with markers that begins at pos, of which it checks the CRC and where the
// markers point.
func unmark(b []byte, pos uint64) (ulpdu []byte, err error) {
	if !sealed(b) {
		return nil, CRCMismatch
	}
	field := 0 // ULPDU_Length
	if pos%MarkerInterval == 0 {
		field = MarkerLen
	}
	var plain []byte
	for at, next := 0, int(-pos%MarkerInterval); at < len(b); next += MarkerInterval {
		plain = append(plain, b[at:min(next, len(b))]...)
		if at = next + MarkerLen; next < len(b) && binary.BigEndian.Uint32(b[next:]) != uint32(max(0, next-field)) {
			return nil, LengthMismatch
		}
	}
	ulpdu, n, err := ParseFPDU(plain, false)
	if err == nil && n != len(plain) {
		err = LengthMismatch
	}
	return ulpdu, err
}

// TestEveryPrefixOfAnFPDUIsIncomplete, and is left as it is.
func TestEveryPrefixOfAnFPDUIsIncomplete(t *testing.T) {
	b := fpdu(bytes.Repeat([]byte{7}, 1001), true)
	before := bytes.Clone(b)
	for n := range b {
		if _, _, err := ParseFPDU(b[:n:n], true); err != ErrIncomplete {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if !bytes.Equal(b, before) {
		t.Error("changed")
	}
}

// TestMarkersAreInTheStreamEvery512Bytes: a stream of FPDUs of any lengths has markers at the
// multiples of 512 bytes and nowhere else. Each gives its distance from its FPDU's length field.
func TestMarkersAreInTheStreamEvery512Bytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pos := uint64(0)
		for _, n := range rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(480, 540), rapid.IntRange(0, 3000)), 1, 20).Draw(t, "lengths") {
			ulpdu := bytes.Repeat([]byte{0xa5}, n)
			b := AppendMarkedFPDU(nil, ulpdu, pos, true)
			if len(b) != MarkedFPDULen(n, pos) {
				t.Fatalf("%d bytes at %d: FPDU of %d bytes, said to be %d", n, pos, len(b), MarkedFPDULen(n, pos))
			}
			if got, err := unmark(b, pos); err != nil || !bytes.Equal(got, ulpdu) {
				t.Fatalf("%d bytes at %d: %v, %x", n, pos, err, b)
			}
			pos += uint64(len(b))
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, frame := range frames {
		f.Add(frame.Append(nil), frame.Reply)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		got, n, err := ParseFrame(b, reply)
		if err != nil {
			return
		}
		again, m, err := ParseFrame(got.Append(nil), reply)
		if d := diff(got, again); err != nil || n != m || n > MaxFrameLen || d != "" {
			t.Fatalf("%d and %d bytes, %v (-first +again):\n%s", n, m, err, d)
		}
	})
}

// FuzzFPDU takes any bytes for a stream. A wrong CRC is corrected: otherwise hardly any changed input
// would get past it. What is in an FPDU is sent with markers, too.
func FuzzFPDU(f *testing.F) {
	for _, s := range segments(f) {
		for _, pos := range []uint64{0, 4, 480, 508} {
			f.Add(fpdu(s.append(nil), true), pos)
		}
	}
	f.Add(fpdu(make([]byte, 2000), true), uint64(300))
	f.Fuzz(func(t *testing.T, b []byte, pos uint64) {
		before := bytes.Clone(b)
		ulpdu, n, err := ParseFPDU(b, true)
		if err != nil && !bytes.Equal(b, before) {
			t.Fatal("an FPDU that is refused was changed")
		}
		if err == CRCMismatch {
			n = FPDULen(int(binary.BigEndian.Uint16(b)))
			binary.LittleEndian.PutUint32(b[n-CRCLen:], crc32.Checksum(b[:n-CRCLen], castagnoli))
			ulpdu, n, err = ParseFPDU(b, true)
		}
		if err != nil {
			return
		}
		same, m, err := ParseFPDU(fpdu(ulpdu, true), true)
		if err != nil || m != n || !bytes.Equal(same, ulpdu) {
			t.Fatalf("%d bytes parsed, %d made and parsed again: %v", n, m, err)
		}
		if pos &^= 3; len(ulpdu) > MaxMarkedULPDU {
			return
		}
		if same, err := unmark(AppendMarkedFPDU(nil, ulpdu, pos, true), pos); err != nil || !bytes.Equal(same, ulpdu) {
			t.Fatalf("with markers at %d: %v", pos, err)
		}
	})
}

package perftest

import (
	"bytes"
	"testing"
)

// golden is a message of keys as perftest 4.5's format has it: the C library's printf wrote it from
// KEY_PRINT_FMT_GID.
const golden = "0000:0010:00012a:fffff0:0badcafe:00007f0012345000:00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:64:0b:00000000:"

var goldenKeys = Keys{
	QPN: 0x12a, PSN: 0xfffff0, RKey: 0x0badcafe, Addr: 0x7f0012345000, Reads: 16,
	GID: [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 168, 14: 100, 15: 11},
}

// TestKeysAreWrittenAsPerftestDoes: the message is the same as perftest's, byte for byte, and a shorter one is refused.
func TestKeysAreWrittenAsPerftestDoes(t *testing.T) {
	msg := append([]byte(golden), 0)
	if len(msg) != KeysLen || !bytes.Equal(goldenKeys.Message(), msg) {
		t.Fatalf("%q, want %q", goldenKeys.Message(), msg)
	}
	if k, err := ParseKeys(msg); err != nil || *k != goldenKeys {
		t.Fatalf("%+v, %v", k, err)
	}
	for n := range golden {
		if k, err := ParseKeys(msg[:n]); err == nil {
			t.Errorf("%q: %+v", msg[:n], k)
		}
	}
	for _, bad := range []string{"0000:0010:100012a" + golden[16:], "-" + golden[1:], golden[:len(golden)-2] + "g:", golden + "0:"} {
		if k, err := ParseKeys([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, k)
		}
	}
}

// TestTheFirstMessageTellsTheVersion: the first message is a version and zeros, or one of ours; older ones have numbers of
// other lengths.
func TestTheFirstMessageTellsTheVersion(t *testing.T) {
	msg := []byte("6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	if v, ours, err := parseHello(msg); v != "6.06" || ours || err != nil {
		t.Error(v, ours, err)
	}
	for n := range msg {
		if v, _, err := parseHello(msg[:n]); err == nil {
			t.Errorf("%q: %s", msg[:n], v)
		}
	}
	if v, ours, err := parseHello(hello()); v != version || !ours || err != nil {
		t.Error(v, ours, err)
	}
	for _, bad := range []string{"5.32", "GET / HTTP/1.1\r\n", "99999999999999.9", "6"} {
		b := make([]byte, versionLen)
		copy(b, bad)
		if v, _, err := parseHello(b); err == nil {
			t.Errorf("%q: %s", b, v)
		}
	}
}

// goldenReport is 65536 bytes, 5000 times, at 100, 50 and 0.5, in big endian.
var goldenReport = []byte{
	0, 0, 0, 0, 0, 1, 0, 0,
	0, 0, 0, 0, 0, 0, 0x13, 0x88,
	0x40, 0x59, 0, 0, 0, 0, 0, 0,
	0x40, 0x49, 0, 0, 0, 0, 0, 0,
	0x3f, 0xe0, 0, 0, 0, 0, 0, 0,
}

// TestAReportHasTheFormatOfPerftest: the numbers have perftest's format, and keys are not mistaken for a report.
func TestAReportHasTheFormatOfPerftest(t *testing.T) {
	want := Report{65536, 5000, 100, 50, 0.5}
	if b := want.marshal(); !bytes.Equal(b, goldenReport) {
		t.Errorf("%x, want %x", b, goldenReport)
	}
	if r, err := parseReport(goldenReport); err != nil || *r != want {
		t.Errorf("%+v, %v", r, err)
	}
	for n := range goldenReport {
		if r, err := parseReport(goldenReport[:n]); err == nil {
			t.Errorf("%d bytes: %+v", n, r)
		}
	}
	if r, err := parseReport([]byte(golden)[:reportLen]); err == nil {
		t.Errorf("%+v", r)
	}
}

// FuzzMessages: whatever the other end sends, a message that is accepted is encoded to the same
// bytes.
func FuzzMessages(f *testing.F) {
	for _, b := range [][]byte{[]byte(golden), goldenReport, hello()} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := ParseKeys(b); err == nil {
			again, err := ParseKeys(k.Message())
			if err != nil || *again != *k || len(k.String()) != KeysLen-1 {
				t.Errorf("%q: %+v, then %+v, %v", b, k, again, err)
			}
		}
		if r, err := parseReport(b); err == nil && !bytes.Equal(r.marshal(), b) {
			t.Errorf("%x: %+v", b, r)
		}
		if v, _, err := parseHello(b); err == nil && v == "" {
			t.Errorf("%q has no version", b)
		}
	})
}

package wiretest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Malformed is the column, and BadLength the field, by which tshark says that it does not understand a
// segment.
const (
	Malformed = "_ws.malformed"
	BadLength = "iwarp_mpa.bad_length"
)

// Segment is a TCP segment of a connection.
type Segment struct {
	Reply   bool // from the responder
	Payload []byte
}

// capture writes TCP segments of one connection, as IPv4 packets without checksums. gopacket would do it, but fuzzing
// looks at the counters of all that its program contains after each execution.
func capture(t testing.TB, file string, segments []Segment) {
	t.Helper()
	const snapLen, linkTypeIPv4 = 1 << 16, 228
	b := []byte{0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, snapLen)
	b = binary.BigEndian.AppendUint32(b, linkTypeIPv4)
	next := [2]uint32{1000, 2000}
	send := func(s Segment, flags uint16) {
		from, to := byte(0), byte(1)
		if s.Reply {
			from, to = 1, 0
		}
		n := uint32(40 + len(s.Payload))
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // time
		b = binary.BigEndian.AppendUint32(b, n)
		b = binary.BigEndian.AppendUint32(b, n)
		b = binary.BigEndian.AppendUint16(append(b, 0x45, 0), uint16(n))
		b = append(b, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1+from, 10, 0, 0, 1+to)
		b = binary.BigEndian.AppendUint16(b, 40001+uint16(from))
		b = binary.BigEndian.AppendUint16(b, 40001+uint16(to))
		b = binary.BigEndian.AppendUint32(b, next[from])
		b = binary.BigEndian.AppendUint32(b, next[to])
		b = binary.BigEndian.AppendUint16(b, 5<<12|flags)
		b = append(b, 0xff, 0xff, 0, 0, 0, 0)
		b = append(b, s.Payload...)
		next[from] += uint32(len(s.Payload)) + uint32(flags&syn)/syn
	}
	send(Segment{}, syn)
	send(Segment{Reply: true}, syn|ack)
	for _, s := range segments {
		send(s, ack|push)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Flags of TCP.
const syn, push, ack = 2, 8, 16

// Read returns what tshark prints of the TCP segments with data in a file.
func Read(t testing.TB, file string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatalf("%v: make deps installs it", err)
		}
		t.Skip("tshark is not installed")
	}
	home := t.TempDir()
	// Its heuristic takes short SENDs for RPC over RDMA.
	cmd := exec.CommandContext(t.Context(), "tshark", append(args, "-n", "-r", file, "-Y", "tcp.len > 0", "--disable-protocol", "rpcordma")...)
	cmd.Env = append(os.Environ(), "HOME="+home, "WIRESHARK_CONFIG_DIR="+home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	return string(out)
}

// Tshark returns the values of the fields, one map of those not empty for each TCP segment with data,
// and how many CRCs it finds right.
func Tshark(t testing.TB, segments []Segment, fields []string) (got []map[string]string, good int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "iwarp.pcap")
	capture(t, file, segments)
	args := []string{"-T", "fields"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	for line := range strings.Lines(Read(t, file, args...)) {
		m := make(map[string]string)
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			if number, ok := strings.CutPrefix(v, "0x"); ok { // some numbers are printed so
				n, err := strconv.ParseUint(number, 16, 64)
				if err != nil {
					t.Fatalf("%s is %s", fields[i], v)
				}
				v = fmt.Sprint(n)
			}
			switch v {
			case "":
			case "False", "True": // so do later versions print what 4.0 prints as 0 and 1
				m[fields[i]] = bit(v == "True")
			default:
				m[fields[i]] = v
			}
		}
		got = append(got, m)
	}
	if len(got) != len(segments) {
		t.Fatalf("tshark shows %d segments of %d", len(got), len(segments))
	}
	return got, strings.Count(Read(t, file, "-O", "iwarp_mpa"), "(Good CRC32)")
}

// bit is how 4.0 prints a flag.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

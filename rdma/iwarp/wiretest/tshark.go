package wiretest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
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

// capture writes TCP segments of one connection.
func capture(t testing.TB, file string, segments []Segment) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	ports, next := [2]layers.TCPPort{40001, 40002}, [2]uint32{1000, 2000}
	send := func(s Segment, syn bool) {
		from, to := 0, 1
		if s.Reply {
			from, to = 1, 0
		}
		ip := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP,
			SrcIP: net.IP{10, 0, 0, byte(1 + from)}, DstIP: net.IP{10, 0, 0, byte(1 + to)},
		}
		tcp := &layers.TCP{
			SrcPort: ports[from], DstPort: ports[to], Seq: next[from], Ack: next[to], SYN: syn, ACK: !syn || s.Reply, PSH: !syn, Window: 65535,
		}
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buf := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buf, options, ip, tcp, gopacket.Payload(s.Payload)); err != nil {
			t.Fatal(err)
		}
		n := len(buf.Bytes())
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: n, Length: n}, buf.Bytes()); err != nil {
			t.Fatal(err)
		}
		next[from] += uint32(len(s.Payload))
		if syn {
			next[from]++
		}
	}
	send(Segment{}, true)
	send(Segment{Reply: true}, true)
	for _, s := range segments {
		send(s, false)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Tshark returns the values of the fields, one map of those not empty for each TCP segment with data,
// and how many CRCs it finds right.
func Tshark(t testing.TB, segments []Segment, fields []string) (got []map[string]string, good int) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatalf("%v: make deps installs it", err)
		}
		t.Skip("tshark is not installed")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "iwarp.pcap")
	capture(t, file, segments)
	run := func(args ...string) string {
		// Its heuristic takes short SENDs for RPC over RDMA.
		cmd := exec.CommandContext(t.Context(), "tshark", append(args, "-n", "-r", file, "-Y", "tcp.len > 0", "--disable-protocol", "rpcordma")...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "WIRESHARK_CONFIG_DIR="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s", err, stderr.String())
		}
		return string(out)
	}
	args := []string{"-T", "fields"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	for line := range strings.Lines(run(args...)) {
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
	return got, strings.Count(run("-O", "iwarp_mpa"), "(Good CRC32)")
}

// bit is how 4.0 prints a flag.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

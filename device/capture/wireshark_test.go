package capture

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/underlay"
)

const dissector = "../../docs/wireshark/vnic.lua"

const (
	colProtocol = "_ws.col.Protocol"
	colInfo     = "_ws.col.Info"
	luaError    = "_ws.lua.error"
)

func requireTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatalf("%v: make deps installs it", err)
		}
		t.Skip(name + " is not installed")
	}
}

// tshark returns the values of the fields, one map of those not empty for each packet.
func tshark(t *testing.T, script string, packets []shown, fields []string) []map[string]string {
	t.Helper()
	dir := t.TempDir()
	var got []map[string]string
	for chunk := range slices.Chunk(packets, slots) { // as many as a capture takes without dropping
		file := filepath.Join(dir, fmt.Sprintf("%d.pcapng", len(got)))
		c, err := Create(file, config.CaptureBoth)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range chunk {
			c.Packet(p.iface, Out, int64(i), p.packet, "")
		}
		if err := c.Close(); err != nil || c.Drops() != 0 {
			t.Fatalf("%v, %d drops", err, c.Drops())
		}
		args := []string{"-n", "-X", "lua_script:" + script, "-r", file, "-T", "fields"}
		for _, f := range fields {
			args = append(args, "-e", f)
		}
		cmd := exec.CommandContext(t.Context(), "tshark", args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "WIRESHARK_CONFIG_DIR="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || strings.Contains(strings.ToLower(stderr.String()), "lua") {
			t.Fatalf("tshark: %v\n%s", err, stderr.String())
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(lines) != len(chunk) {
			t.Fatalf("tshark shows %d packets of %d", len(lines), len(chunk))
		}
		for _, line := range lines {
			m := make(map[string]string)
			for i, v := range strings.Split(line, "\t") {
				switch v {
				case "":
				case "False", "True": // so do later versions print what 4.0 prints as 0 and 1
					m[fields[i]] = flag(v == "True")
				default:
					m[fields[i]] = v
				}
			}
			got = append(got, m)
		}
	}
	return got
}

// TestTsharkShowsWhatTheEncodersWereGiven: tshark shows every packet type and opcode with exactly the fields and values the
// encoders were given.
func TestTsharkShowsWhatTheEncodersWereGiven(t *testing.T) {
	requireTool(t, "tshark")
	packets := everyPacket(t)
	names := map[string]bool{luaError: true}
	for _, p := range packets {
		for f := range p.fields {
			names[f] = true
		}
	}
	for i, got := range tshark(t, dissector, packets, slices.Sorted(maps.Keys(names))) {
		if diff := cmp.Diff(packets[i].fields, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", packets[i].fields[colInfo], diff)
		}
	}
}

// TestDissectorSurvivesAnything: packets cut anywhere or with wrong bytes never raise an error in
// the script.
func TestDissectorSurvivesAnything(t *testing.T) {
	requireTool(t, "tshark")
	rng := rand.New(rand.NewPCG(1, 2))
	var bad []shown
	for _, p := range everyPacket(t) {
		head := 20
		if p.iface == Sealed {
			head = 14 + 20 + 8
		}
		// wrap puts a body behind new headers, so that the body is wrong and not IP.
		wrap := func(body []byte) {
			if p.iface == Sealed {
				p.packet = build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(underlay.SealedPort), gopacket.Payload(body))
			} else {
				p.packet = inner(body)
			}
			bad = append(bad, p)
		}
		body := bytes.Clone(p.packet[head:])
		for n := range body {
			wrap(body[:n])
		}
		for range 30 {
			b := bytes.Clone(body)
			for range 1 + rng.IntN(4) {
				b[rng.IntN(min(len(b), 32))] = byte(rng.Uint32())
			}
			wrap(b[:1+rng.IntN(len(b))])
		}
		snapped := p
		snapped.packet = slices.Concat(p.packet, make([]byte, snapLen)) // longer than IP says, and cut by the capture
		bad = append(bad, snapped)
	}
	fields := []string{luaError, colInfo}
	truncated := 0
	for i, got := range tshark(t, dissector, bad, fields) {
		if got[luaError] != "" || strings.Contains(got[colInfo], "Lua") {
			t.Errorf("packet %x: %v", bad[i].packet, got)
		}
		if strings.Contains(got[colInfo], "truncated") {
			truncated++
		}
	}
	if truncated < 1000 {
		t.Errorf("%d of %d packets shown as truncated", truncated, len(bad))
	}

	// An error in the script would be seen.
	script, err := os.ReadFile(dissector)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.lua")
	if err := os.WriteFile(broken, append(script, "\nfunction falcon.dissector(tvb) return tvb(99999, 1):len() end\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tshark(t, broken, bad[40:41], fields); got[0][luaError] == "" {
		t.Errorf("an error in the script went unseen: %v", got)
	}
}

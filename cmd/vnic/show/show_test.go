package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// TestShowSaysThatAnUplinkIsDown: vnic show nic marks an uplink that vnic inject has taken down.
func TestShowSaysThatAnUplinkIsDown(t *testing.T) {
	for _, tc := range []struct {
		rx, tx bool
		want   string
	}{
		{false, false, "mtu 1500\n"},
		{true, false, "mtu 1500, rx down by impairment"},
		{false, true, "mtu 1500, tx down by impairment"},
		{true, true, "mtu 1500, down by impairment"},
	} {
		u := control.Uplink{Name: "v0", MTU: 1500}
		u.RX.Impairment.Down, u.TX.Impairment.Down = tc.rx, tc.tx
		var b bytes.Buffer
		printNIC(&b, control.NIC{Uplinks: []control.Uplink{u}})
		if !strings.Contains(b.String(), tc.want) {
			t.Errorf("%+v: %q", tc, b.String())
		}
	}
}

// TestTopShowsPlainIP: the line about plain IP is there only if ports carried some.
func TestTopShowsPlainIP(t *testing.T) {
	at := time.Unix(100, 0)
	was := sample{at: at, counters: control.Counters{"gateway.from_port_bytes": 1000}}
	is := sample{at: at.Add(2 * time.Second), counters: control.Counters{
		"gateway.from_port_bytes": 1000 + 1e9, "gateway.to_port_bytes": 5e8, "gateway.tunnel_tx_packets": 2e6,
	}}
	if head := topHead(&was, &is); !strings.Contains(head, "from ports "+si(4e9)+"bit/s  to ports "+si(2e9)+"bit/s") || !strings.Contains(head, "out "+si(1e6)) {
		t.Error(head)
	}
	if head := topHead(&sample{}, &sample{}); strings.Contains(head, "plain IP") {
		t.Errorf("of a NIC without ports: %s", head)
	}
}

// TestShowAnswersOfARunningNIC: each vnic show command prints the state of a NIC at work.
func TestShowAnswersOfARunningNIC(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		l.Client(0, 100_000)
		l.Client(1, 100_000)
		l.Busy(0)
		socket := l.Hosts[0].Control
		show := func(args ...string) string {
			t.Helper()
			stdout, stderr, code := vnictest.Run(t, append([]string{"show", "-s", socket}, args...)...)
			if code != 0 || stderr != "" {
				t.Fatalf("%v: exit status %d, %s", args, code, stderr)
			}
			return stdout
		}
		vnictest.Eventually(t, "connection", func() error {
			var cs []control.Connection
			if err := json.Unmarshal([]byte(show("connections", "--json")), &cs); err != nil {
				t.Fatal(err)
			}
			if len(cs) != 1 || cs[0].State != "ESTABLISHED" || cs[0].Function != "h1.pf0.vf1" || cs[0].PeerFunction != "h2.pf0.vf1" {
				return fmt.Errorf("%+v", cs)
			}
			return nil
		})
		for _, tc := range []struct{ what, want string }{
			{"uplinks", `UPLINK +ADDRESS .*\nvnic-up1 +10\.99\.0\.1/24 +4500 +rx +none +0 .*\nvnic-up1 .* tx +none `},
			{"nic", `host 1 +nic1 .*\nuplink vnic-up1 +10\.99\.0\.1/24 +02:56:4e:ff:00:01 +mtu 4500\npeer 2 +10\.99\.0\.2 +vnic://demo/host/2 +up, 1 functions, 1 connections\n`},
			{"functions", `FUNCTION +STATE +TENANT +ADDRESS .*\nh1\.pf0 +DISABLED .*\nh1\.pf0\.vf1 +READY +100 +192\.168\.100\.11 .*unix +1 +1 +1`},
			{"connections", `ID +STATE +FUNCTION .*\n\d+ +ESTABLISHED +h1\.pf0\.vf1 +0x\w+ +falcon +2 +h2\.pf0\.vf1 +0x\w+ +100 +0x\w+ +0x\w+ +\d+ +\d+ +\d+\.\d +[\d.]+.?s +-\n`},
			{"qps", `FUNCTION +QPN .*\nh1\.pf0\.vf1 +0x\w+ +RC +RTS +192\.168\.100\.12 +0x\w+ +\d+ +\d+ +\d+`},
			{"queues", `(?s)FUNCTION +KIND .*\nh1\.pf0\.vf1 +admin-sq +0x0 +256 .*\nh1\.pf0\.vf1 +sq +0x\w+ .*\nh1\.pf0\.vf1 +cq +`},
			{"credits", `LEVEL +NAME +REQ-PKT-TX .*NET-BUF-RX +REFUSED\nnic +nic1 +\d+/65536 .*\nhost +h1 .*\nfunction +h1\.pf0 .*\nfunction +h1\.pf0\.vf1 +\d+/1024 .*\nconnection +h1\.pf0\.vf1/\d+ +\d+/256 `},
			{"violations", `FUNCTION +CLAUSE +RING +QUEUE +INDEX +COUNT +SINCE +WHAT +BYTES\n`},
			{"violations --clear", `FUNCTION +CLAUSE +RING +QUEUE +INDEX +COUNT +SINCE +WHAT +BYTES\n`},
			{"keys", `(?s)DIRECTION +PEER .*\nrx +2 +100 +falcon +0x\w+ +- +\d+ +-\n.*tx +2 +100 +falcon +0x\w+ +- +- +[1-9]\d*\n`},
			{"counters", `(?s)cm\.established +1\n.*drop\.psp_auth +0\n.*drop\.unknown_cid +0\n.*falcon\.data_sent +[1-9]\d*\n.*shard\.tx_packets +[1-9]\d*\n`},
		} {
			if text := show(strings.Fields(tc.what)...); !regexp.MustCompile(tc.want).MatchString(text) {
				t.Errorf("show %s:\n%swant %s", tc.what, text, tc.want)
			}
		}
		var n control.NIC
		if err := json.Unmarshal([]byte(show("nic", "--json")), &n); err != nil || n.Host != 1 || len(n.Peers) != 1 || n.PID != l.NICs[0].Cmd.Process.Pid {
			t.Errorf("%+v, %v", n, err)
		}
		var fs []control.Function
		if err := json.Unmarshal([]byte(show("functions", "--json")), &fs); err != nil || len(fs) != 2 || fs[1].Attached != "unix" {
			t.Errorf("%+v, %v", fs, err)
		}
		var c control.Counters
		if err := json.Unmarshal([]byte(show("counters", "--json")), &c); err != nil || c["shard.rx_packets"] == 0 {
			t.Errorf("%v, %v", c, err)
		}
		if stdout, stderr, code := vnictest.Run(t, "top", "-s", socket, "-i", "200ms"); code != 0 || !regexp.MustCompile(`(?s)^vnic nic1  host 1 .*peers 1 of 1  connections 1\npackets/s .*FUNCTION .*\nh1\.pf0\.vf1 +READY +up +\S+ `).MatchString(stdout) {
			t.Errorf("top: exit status %d, %s\n%s", code, stderr, stdout)
		}
		vf := func(args ...string) (string, string, int) {
			return vnictest.Run(t, append([]string{"vf", "-s", socket}, args...)...)
		}
		for _, tc := range []struct {
			args []string
			want string // of standard output, or of the error
			code int
		}{
			{[]string{"set", "pf0", "vf", "1", "rate", "5000", "trust", "on", "credits", "req-pkt-tx=64", "guarantee", "req-pkt-tx=8"}, `(?s)h1\.pf0\.vf1 +READY.*max_tx_rate 5000 Mbit/s, weight 1 +trust on, spoof checking on`, 0},
			{[]string{"show", "pf0.vf1"}, `(?s)^h1\.pf0\.vf1 .*link-state auto, up .*guest unix guest +attached unix .*QP 1 of 256`, 0},
			{[]string{"set", "h1.pf0.vf4", "enable", "tenant", "100", "address", "192.168.100.14"}, `(?s)h1\.pf0\.vf4 +RESET.*address 192\.168\.100\.14`, 0},
			{[]string{"disable", "pf0.vf4"}, `h1\.pf0\.vf4 +DISABLED`, 0},
			{[]string{"enable", "pf0", "vf", "4"}, `h1\.pf0\.vf4 +RESET`, 0},
			{[]string{"reset", "pf0.vf4"}, `resets 1`, 0},
			{[]string{"set", "pf0.vf4", "address", "192.168.100.11"}, `h1\.pf0\.vf4\.address: 192\.168\.100\.11 in tenant 100 is already used by h1\.pf0\.vf1; give each`, 1},
			{[]string{"set", "pf0.vf4", "mac"}, `mac has no value`, cli.ExitUsage},
			{[]string{"enable", "pf0.vf5"}, `VFs of pf0 go up to 4 \(its vf_count\)`, 1},
			{[]string{"show", "pf9"}, `function pf9: the NIC has no such function`, 1},
		} {
			stdout, stderr, code := vf(tc.args...)
			if code != tc.code || !regexp.MustCompile(tc.want).MatchString(stdout+stderr) {
				t.Errorf("vf %v: exit status %d\n%s%swant %s", tc.args, code, stdout, stderr, tc.want)
			}
		}
		if text := show("credits"); !regexp.MustCompile(`function +h1\.pf0\.vf1 +\d+/64\+8 `).MatchString(text) {
			t.Errorf("show credits after vf set:\n%s", text)
		}
		l.NICs[0].Stop(vnictest.Limit)
		if _, stderr, code := vnictest.Run(t, "show", "nic", "-s", socket); code != 1 || !strings.Contains(stderr, socket) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("of a NIC that is gone: exit status %d, %q", code, stderr)
		}
	})
}

// TestShowIsExplained: docs/troubleshooting.md names each thing that vnic show can print.
func TestShowIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"vnic top", "vnic trace", "vnic capture", "vnic vf show"}
	for _, s := range showings {
		names = append(names, "vnic show "+s.name)
	}
	for _, name := range names {
		if !bytes.Contains(page, []byte("`"+name)) {
			t.Errorf("docs/troubleshooting.md says nothing of %s", name)
		}
	}
}

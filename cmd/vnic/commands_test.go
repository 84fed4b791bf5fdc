package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
)

const exampleConfig = "../../docs/vnic.example.yaml"

// checkInfo checks what `vnic guest info --json` printed of a host's VF 1.
func checkInfo(t *testing.T, text string, h *demoHost) {
	t.Helper()
	var info guestDescription
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if info.Function != "h1.pf0.vf1" || info.GID != h.TenantIP || info.Tenant != demoTenant || info.MTU != 4096 || info.Limits.MaxQP == 0 {
		t.Errorf("%+v", info)
	}
}

func TestRunCheck(t *testing.T) {
	stdout, stderr, code := run(t, "run", "--check=file", "-c", exampleConfig)
	if want := exampleConfig + ": good: host 1, 4 functions, 1 peers\n"; code != 0 || stdout != want || stderr != "" {
		t.Errorf("the example: exit status %d, %q, %q, want %q", code, stdout, stderr, want)
	}
	file := filepath.Join(t.TempDir(), "nic.yaml")
	head := "vnic: configuration " + file + ":\n"
	for _, tc := range []struct{ name, yaml, want string }{
		{
			"unknown key", "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\nrmda: {}\n",
			head + `line 3: rmda: unknown key; did you mean "rdma"?` + "\n",
		},
		{
			"every problem at once", "nic: {host: 256}\nuplink: {name: abcdefghijklmnop, mtu: 1500, address: 10.0.0.1/24}\n",
			head + `line 1: nic.host: "256" is out of range; use 1 to 255` + "\n" +
				`line 2: uplink.name: "abcdefghijklmnop" has 16 characters; use at most 15` + "\n" +
				"rdma.mtu: the default, 4096, does not fit uplink.mtu 1500: with 176 bytes of headers it needs 4272; write 1024, or raise uplink.mtu\n",
		},
		{"impossible value", "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\npsp: {version: 4}\n", head + "line 3: psp.version: 4 is not a PSP version; write 0 (AES-GCM-128), 1 (AES-GCM-256), 2 (AES-GMAC-128) or 3 (AES-GMAC-256)\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(tc.yaml), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"run", "--check", "-c", file}, {"run", "-c", file}} {
				if stdout, stderr, code := run(t, args...); code != 1 || stdout != "" || stderr != tc.want {
					t.Errorf("%v: exit status %d, %q\n%swant\n%s", args, code, stdout, stderr, tc.want)
				}
			}
		})
	}
	_, stderr, code = run(t, "run", "--check", "-c", "/nowhere.yaml")
	if want := "vnic: configuration: open /nowhere.yaml: no such file or directory; give the path of a file like docs/vnic.example.yaml\n"; code != 1 || stderr != want {
		t.Errorf("exit status %d, %q, want %q", code, stderr, want)
	}
}

func TestKeysInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	args := []string{"keys", "init", "--dir", dir, "--domain", "lab", "1", "2"}
	stdout, stderr, code := run(t, args...)
	if want := fmt.Sprintf("host 1: vnic://lab/host/1 in %[1]s\nhost 2: vnic://lab/host/2 in %[1]s\n", dir); code != 0 || stdout != want {
		t.Fatalf("exit status %d, %q, %q", code, stdout, stderr)
	}
	before := map[string]string{}
	for _, name := range []string{"ca.pem", "ca.key", "host-1.pem", "host-1.key", "host-2.pem", "host-2.key"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(b)
		if st, err := os.Stat(filepath.Join(dir, name)); strings.HasSuffix(name, ".key") && (err != nil || st.Mode().Perm() != 0o600) {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if _, stderr, code = run(t, args...); code != 1 || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "exists") {
		t.Errorf("again: exit status %d, %q", code, stderr)
	}
	for name, was := range before {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != was {
			t.Errorf("%s was changed, %v", name, err)
		}
	}
	if _, stderr, code = run(t, "keys", "init", "--dir", dir, "256"); code != exitUsage || stderr != `vnic: host "256": a host number is 1 to 255`+"\n" {
		t.Errorf("exit status %d, %q", code, stderr)
	}
}

// TestShow asks a NIC that works.
func TestShow(t *testing.T) {
	d := startDemo(t, "--no-vm", "--count", "100000")
	if !d.read("guest 1  attached") {
		t.Fatalf("%s%s", &d.text, &d.errs)
	}
	sockets, _ := filepath.Glob(d.tmp + "/vnic-demo-*/host1.ctl")
	if len(sockets) != 1 {
		t.Fatal(sockets)
	}
	show := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := run(t, append([]string{"show", "-s", sockets[0]}, args...)...)
		if code != 0 || stderr != "" {
			t.Fatalf("%v: exit status %d, %s", args, code, stderr)
		}
		return stdout
	}
	eventually(t, "connection", func() error {
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
		{"connections", `ID +STATE +FUNCTION .*\n\d+ +ESTABLISHED +h1\.pf0\.vf1 +0x\w+ +falcon +h2\.pf0\.vf1 +0x\w+ +100 +0x\w+ +0x\w+ +\d+ +\d+ +\d+\.\d +[\d.]+.?s +-\n`},
		{"qps", `FUNCTION +QPN .*\nh1\.pf0\.vf1 +0x\w+ +RC +RTS +192\.168\.100\.12 +0x\w+ +\d+ +\d+ +\d+`},
		{"queues", `(?s)FUNCTION +KIND .*\nh1\.pf0\.vf1 +admin-sq +0x0 +256 .*\nh1\.pf0\.vf1 +sq +0x\w+ .*\nh1\.pf0\.vf1 +cq +`},
		{"credits", `LEVEL +NAME +REQ-PKT-TX .*NET-BUF-RX +REFUSED\nnic +nic1 +\d+/65536 .*\nhost +h1 .*\nfunction +h1\.pf0 .*\nfunction +h1\.pf0\.vf1 +\d+/1024 .*\nconnection +h1\.pf0\.vf1/\d+ +\d+/256 `},
		{"violations", `FUNCTION +CLAUSE +RING +QUEUE +INDEX +COUNT +SINCE +WHAT +BYTES\n`},
		{"violations --clear", `FUNCTION +CLAUSE +RING +QUEUE +INDEX +COUNT +SINCE +WHAT +BYTES\n`},
		{"keys", `DIRECTION +PEER .*\nrx +2 +100 +falcon +0x\w+ +- +\d+ +-\ntx +2 +100 +falcon +0x\w+ +- +- +[1-9]\d*\n`},
		{"counters", `(?s)cm\.established +1\n.*drop\.psp_auth +0\n.*drop\.unknown_cid +0\n.*falcon\.data_sent +[1-9]\d*\n.*shard\.tx_packets +[1-9]\d*\n`},
	} {
		if text := show(strings.Fields(tc.what)...); !regexp.MustCompile(tc.want).MatchString(text) {
			t.Errorf("show %s:\n%swant %s", tc.what, text, tc.want)
		}
	}
	var n control.NIC
	if err := json.Unmarshal([]byte(show("nic", "--json")), &n); err != nil || n.Host != 1 || len(n.Peers) != 1 || n.PID != d.cmd.Process.Pid {
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
	if stdout, stderr, code := run(t, "top", "-s", sockets[0], "-i", "200ms"); code != 0 || !regexp.MustCompile(`(?s)^vnic nic1  host 1 .*peers 1 of 1  connections 1\npackets/s .*FUNCTION .*\nh1\.pf0\.vf1 +READY +up +\S+ `).MatchString(stdout) {
		t.Errorf("top: exit status %d, %s\n%s", code, stderr, stdout)
	}
	vf := func(args ...string) (string, string, int) {
		return run(t, append([]string{"vf", "-s", sockets[0]}, args...)...)
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
		{[]string{"set", "pf0.vf4", "address", "192.168.100.11"}, `h1\.pf0\.vf4\.address: 192\.168\.100\.11 in tenant 100 is already that of h1\.pf0\.vf1; give each`, 1},
		{[]string{"set", "pf0.vf4", "mac"}, `mac has no value`, exitUsage},
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
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.wait()
	if _, stderr, code := run(t, "show", "nic", "-s", sockets[0]); code != 1 || !strings.Contains(stderr, sockets[0]) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("of a NIC that is gone: exit status %d, %q", code, stderr)
	}
}

// TestGuestInfo asks as a bare client.
func TestGuestInfo(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(0)
		h := l.hosts[0]
		text, stderr, code := run(t, "guest", "info", "--device", "unix://"+h.Socket)
		if want := `(?s)function +h1\.pf0\.vf1 .*\nGID +\S*192\.168\.100\.11\ntenant +100\npath MTU +4096\nlimits +256 QP, 512 CQ`; code != 0 || !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("exit status %d, %s\n%s", code, stderr, text)
		}
		l.free(0)
		text, stderr, code = run(t, "guest", "info", "--json", "--device", "unix://"+h.Socket)
		if code != 0 {
			t.Fatal(stderr)
		}
		checkInfo(t, text, h)
	})
}

// TestShowIsExplained: each thing that vnic show knows is in
// docs/troubleshooting.md, with the question it answers.
func TestShowIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
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

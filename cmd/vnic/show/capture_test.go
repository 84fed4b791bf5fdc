package show

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/netns"
)

// TestCaptureWritesPacketsOfARunningNIC: vnic capture writes a running NIC's packets under load to a file and to standard
// output.
func TestCaptureWritesPacketsOfARunningNIC(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		a, b := l.Client(0, 100_000), l.Client(1, 100_000)
		defer a.P.Stop(time.Second)
		defer b.P.Stop(time.Second)
		b.Next("progress")
		path := filepath.Join(l.Dir, "x.pcapng")
		_, stderr, code := vnictest.Run(t, "capture", "-s", l.Hosts[0].Control, "-w", path, "--mode", "clear", "--limit", "2000000")
		if code != 0 || !strings.Contains(stderr, "bytes captured") {
			t.Fatalf("exit status %d, %s", code, stderr)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n, explained := packets(t, data); n < 100 || explained < n/4 {
			t.Errorf("%d packets, %d of which say whose work request they are", n, explained)
		}
		if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", st.Mode())
		}
		stdout, stderr, code := vnictest.Run(t, "capture", "-s", l.Hosts[0].Control, "-w", "-", "--mode", "sealed", "--limit", "100000")
		if n, _ := packets(t, []byte(stdout)); code != 0 || n < 10 || len(stdout) > 100_000 {
			t.Errorf("exit status %d, %d packets in %d bytes, %s", code, n, len(stdout), stderr)
		}
		for want, args := range map[string][]string{
			"exists and is not overwritten":            {"-w", path},
			`mode "loud": write sealed, clear or both`: {"-w", path + "2", "--mode", "loud"},
			"capture: --write is missing":              nil,
		} {
			_, stderr, code := vnictest.Run(t, append([]string{"capture", "-s", l.Hosts[0].Control}, args...)...)
			if code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, %q, want %q", args, code, stderr, want)
			}
		}
	})
}

const portsConfig = `
nic: {host: 1}
control: %[1]s/c.sock
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {unix: a}, port: {mode: direct, name: vp1}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {unix: a}, port: {mode: direct, name: vp2}}
tenants:
  - {tenant: 100, routers: [192.168.100.1]}
attach:
  - {type: unix, name: a, socket: %[1]s/a.sock}
`

// TestTsharkReadsPacketsOfAPort: tshark reads what a guest sends and receives by its port, and finds an
// interface with each port's name.
func TestTsharkReadsPacketsOfAPort(t *testing.T) {
	vnictest.RequireRoot(t)
	for _, tool := range []string{"tshark", "tcpdump", "ping"} {
		_, err := exec.LookPath(tool)
		vnictest.Require(t, err == nil, tool+" is not installed")
	}
	dir := t.TempDir()
	vnictest.Program(t)
	netns.Run(t, func() {
		vnictest.ServeOn(t, fabric.New(4500), vnictest.WriteConfig(t, fmt.Sprintf(portsConfig, dir)))
		if err := netns.Up("vp1", "192.168.100.11/24"); err != nil {
			t.Fatal(err)
		}
		control := filepath.Join(dir, "c.sock")
		for name, args := range map[string][]string{"any": {"--port", "any"}, "one": {"--port", "pf0.vf1"}, "sealed too": {"--port", "vp1", "--mode", "sealed"}} {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "")+".pcapng")
			cmd := exec.Command(vnictest.Program(t), append([]string{"capture", "-s", control, "-w", file}, args...)...)
			p, err := labkit.StartCommand("capture", cmd)
			if err != nil {
				t.Fatal(err)
			}
			vnictest.Eventually(t, "capture runs", func() error { // it begins with its interfaces
				if st, err := os.Stat(file); err != nil || st.Size() == 0 {
					return fmt.Errorf("%v %v", st, err)
				}
				return nil
			})
			if out, err := exec.Command("ping", "-c", "10", "-i", "0.2", "-W", "20", "192.168.100.1").CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			p.Stop(20 * time.Second)
			out, err := exec.Command("tshark", "-r", file, "-Y", "icmp", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction", "-e", "icmp.type", "-e", "frame.comment").Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"vp1\t0x00000001\t8\th1.pf0.vf1\n", "vp1\t0x00000002\t0\th1.pf0.vf1\n"} {
				if n := strings.Count(string(out), want); n == 0 || n > 10 { // the first may have been before the capture
					t.Errorf("%s: %q %d times in\n%s", name, want, n, out)
				}
			}
			if out, err := exec.Command("tcpdump", "-nr", file, "icmp").CombinedOutput(); err != nil || !strings.Contains(string(out), "ICMP echo request") {
				t.Errorf("%s: tcpdump: %v %s", name, err, out)
			}
		}
	})
}

// packets counts the packets of a capture and those that name a work request.
func packets(t *testing.T, data []byte) (n, explained int) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for ; ; n++ {
		_, _, o, err := r.ReadPacketDataWithOptions()
		if err != nil {
			return n, explained
		}
		if strings.Contains(strings.Join(o.Comments, ""), "WQE") {
			explained++
		}
	}
}

// TestCaptureEndsWithAWholeBlock: a block that does not fit the limit is left out.
func TestCaptureEndsWithAWholeBlock(t *testing.T) {
	var out bytes.Buffer
	l := &limited{w: &out, left: 40}
	block := func(n byte) []byte { return append([]byte{6, 0, 0, 0, n, 0, 0, 0}, make([]byte, n-8)...) }
	stream := append(append(block(16), block(20)...), block(12)...)
	for i, b := range stream {
		if _, err := l.Write([]byte{b}); err != nil && (!errors.Is(err, errLimit) || i < 43) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	if !bytes.Equal(out.Bytes(), stream[:36]) {
		t.Errorf("%d bytes written, want 36", out.Len())
	}
	if _, err := (&limited{w: &out, left: 40}).Write(make([]byte, 8)); err == nil || !strings.Contains(err.Error(), "not pcapng") {
		t.Errorf("%v", err)
	}
}

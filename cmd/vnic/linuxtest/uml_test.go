package linuxtest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// umlConfig has a guest with a port in its memory, and a port on the host.
const umlConfig = `
nic: {host: 1}
control: %[1]s/control
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, port: {type: vhost-user, socket: %[1]s/p1, mtu: 1500}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, port: {mode: direct, name: vp2, mtu: 1500}}
`

// umlScript is what the guest does. Its device has no MAC address of its own: User Mode Linux would
// ask the NIC for one by a protocol feature that must not be offered to QEMU.
const umlScript = `set -ex
busybox ip link set eth0 address %[1]s
busybox ip link set eth0 up
busybox ip addr add 192.168.100.11/24 dev eth0
busybox ping -c 3 -W 20 192.168.100.12
busybox ping -c 3 -W 20 -s 1400 192.168.100.12
busybox wget -q -O /tmp/bytes http://192.168.100.12/bytes
busybox sha256sum /tmp/bytes
busybox nc 192.168.100.12 9 </tmp/bytes
busybox ip link set eth0 down
busybox ip link set eth0 up
busybox ping -c 1 -W 20 192.168.100.12
echo all done
`

// TestUserModeLinux: Debian's User Mode Linux works on a port in its memory. Its driver is another
// implementation of the protocol: it passes sockets instead of eventfds, sends the messages in
// another order, and has the guest's memory in one region that begins in the middle of a file.
func TestUserModeLinux(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a guest")
	}
	vnictest.RequireRoot(t)
	busybox, err := exec.LookPath("busybox")
	vnictest.Require(t, err == nil, "busybox is not installed")
	out, err := exec.CommandContext(t.Context(), "../../../tools/uml.sh").Output()
	vnictest.Need(t, err, "tools/uml.sh")
	root := strings.TrimSpace(string(out))

	dir, err := os.MkdirTemp("", "vnic-uml-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	path, log, script, initd, initrd := in("nic.yaml"), in("log"), in("script"), in("init"), in("initramfs")
	if err := os.WriteFile(path, fmt.Appendf(nil, umlConfig, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, fmt.Appendf(nil, umlScript, config.FunctionMAC("1", 0, 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Glob(filepath.Join(root, "usr/lib/uml/modules/*"))
	if err != nil || len(modules) != 1 {
		t.Fatalf("modules of User Mode Linux: %v, %v", modules, err)
	}
	if err := vnictest.Build(initd, "../../../qemu/testguest"); err != nil { // vnic itself would fill the guest's memory
		t.Fatal(err)
	}
	ramfs := image.Initramfs{
		Kernel: image.Kernel{Modules: modules[0]}, Init: initd, Modules: []string{"virtio_net"}, Programs: []string{busybox},
		Put: []image.Put{{From: script, To: "/script"}},
	}
	if err := ramfs.Write(initrd); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 8<<20)
	_, _ = rand.Read(want)
	ctx, cancel := context.WithTimeout(t.Context(), vnictest.Limit)
	defer cancel()
	netns.Run(t, func() {
		nic, err := labkit.Start("vnic run", log, vnictest.Program(t), "run", "-c", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			nic.Stop(5 * time.Second)
			if t.Failed() {
				b, _ := os.ReadFile(log)
				t.Logf("vnic run:\n%s", b)
			}
		}()
		if _, stderr, code := vnictest.Run(t, "wait", "-s", filepath.Join(dir, "control")); code != 0 {
			t.Fatal(stderr)
		}
		if err := netns.Up("vp2", "192.168.100.12/24"); err != nil {
			t.Fatal(err)
		}
		back := serveBytes(t, want)
		guest := exec.CommandContext(ctx, filepath.Join(root, "usr/bin/linux.uml"),
			"mem=128M", "initrd="+initrd, "con=null", "con0=null,fd:1", "ssl1=null,fd:2", "uml_dir="+dir, "umid=guest",
			"virtio_uml.device="+filepath.Join(dir, "p1")+":1", "quiet", "--", "/bin/busybox", "sh", "/script")
		guest.Env = append(os.Environ(), "TMPDIR=/dev/shm")                                 // its memory is a file there: a port takes only files on tmpfs
		guest.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // it runs each of its processes as a process of the host
		guest.Cancel = func() error { return syscall.Kill(-guest.Process.Pid, syscall.SIGKILL) }
		said, err := guest.CombinedOutput()
		if err != nil || !bytes.Contains(said, []byte("all done")) {
			t.Fatalf("%v\n%s", err, said)
		}
		if !bytes.Contains(said, fmt.Appendf(nil, "%x", sha256.Sum256(want))) || bytes.Count(said, []byte(" 0% packet loss")) != 3 {
			t.Errorf("the guest did not have what was sent:\n%s", said)
		}
		if got := <-back; !bytes.Equal(got, want) {
			t.Errorf("%d bytes came back, not those that were sent", len(got))
		}
	})
}

// serveBytes offers a guest bytes by HTTP, and returns what the guest sends to the discard port.
func serveBytes(t *testing.T, b []byte) (back <-chan []byte) {
	t.Helper()
	web, err := net.Listen("tcp", "192.168.100.12:80")
	if err != nil {
		t.Fatal(err)
	}
	sink, err := net.Listen("tcp", "192.168.100.12:9")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) })}
	go server.Serve(web) //nolint:errcheck // it ends with the test
	got := make(chan []byte, 1)
	go func() {
		defer close(got)
		c, err := sink.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var buf bytes.Buffer
		_, _ = buf.ReadFrom(c)
		got <- buf.Bytes()
	}()
	t.Cleanup(func() { _ = server.Close(); _ = sink.Close() })
	return got
}

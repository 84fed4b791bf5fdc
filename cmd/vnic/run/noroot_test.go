package run_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
)

// nobody is the user without rights that a test's NICs run as.
const nobody = 65534

// TestAnOrdinaryUserRunsNICs: two NICs with uplinks over UDP, and the clients of their functions, run
// as a user without rights, with ports above 1023. A port below is refused with the remedy.
func TestAnOrdinaryUserRunsNICs(t *testing.T) {
	dir, err := os.MkdirTemp("", "vnic-user-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(vnictest.Program(t))
	must(err)
	vnic := filepath.Join(dir, "vnic")
	must(os.WriteFile(vnic, program, 0o755))
	must(cmlink.Init(filepath.Join(dir, "keys"), "user", []string{"1", "2"}))
	cms, err := labkit.FreePorts()
	must(err)
	at, err := labkit.FreePorts()
	must(err)
	file := func(kind string, i int) string { return filepath.Join(dir, fmt.Sprintf("%s%d", kind, i+1)) }
	write := func(i, port int) {
		t.Helper()
		must(os.WriteFile(file("yaml", i), fmt.Appendf(nil, `
nic: {host: %[1]d}
control: %[3]s
uplink: {type: udp, listen: "127.0.0.1:%[4]d"}
cm: {listen: "127.0.0.1:%[6]d", identity: %[8]s}
peers:
  - {host: %[2]d, underlay: "127.0.0.1:%[5]d", cm: "127.0.0.1:%[7]d", identity: "vnic://user/host/%[2]d", tenants: [7]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 7, address: 10.7.0.%[1]d, guest: {unix: client}}
      - {vf: 2, tenant: 7, address: 10.7.0.1%[1]d, guest: {cid: 5}, port: {type: vhost-user, socket: %[9]s.port}}
attach:
  - {type: unix, name: client, socket: %[9]s}
  - {type: vhost-user, cid: 5, socket: %[9]s.vsock}
`, i+1, 2-i, file("ctl", i), port, at[1-i], cms[i], cms[1-i], filepath.Join(dir, "keys"), file("sock", i)), 0o644))
	}
	user := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		user.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		must(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				err = os.Chown(path, nobody, nobody)
			}
			return err
		}))
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(vnic, args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: user.Credential}
		return cmd
	}

	write(0, 999)
	out, err := command("run", "-c", file("yaml", 0)).CombinedOutput()
	if want := "uplink.listen: 127.0.0.1:999: bind: permission denied: ports below 1024 are for root"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s\nwant %q", err, out, want)
	}

	for i := range 2 {
		write(i, at[i])
		if out, err := command("run", "--check", "-c", file("yaml", i)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		log, err := os.Create(file("log", i))
		must(err)
		cmd := command("run", "-c", file("yaml", i))
		cmd.Stderr = log
		p, err := labkit.StartCommand(fmt.Sprintf("nic %d", i+1), cmd)
		must(err)
		log.Close()
		t.Cleanup(func() {
			p.Stop(5 * time.Second)
			if text, _ := os.ReadFile(file("log", i)); t.Failed() {
				t.Logf("nic %d:\n%s", i+1, text)
			}
		})
	}
	for i := range 2 {
		vnictest.Eventually(t, "peers", func() error {
			n, err := control.NewClient(file("ctl", i)).NIC(context.Background())
			if err == nil && (!n.Peers[0].Up || n.Peers[0].Functions == 0) {
				err = fmt.Errorf("%+v", n.Peers[0])
			}
			return err
		})
	}
	first := command("guest", "workload", "-d", "unix://"+file("sock", 0), "--first", "--peer", "10.7.0.2", "--count", "3")
	p, err := labkit.StartCommand("first client", first)
	must(err)
	defer p.Stop(0)
	out, err = command("guest", "workload", "-d", "unix://"+file("sock", 1), "--second", "--peer", "10.7.0.1", "--count", "3").CombinedOutput()
	<-p.Done
	if err != nil || p.Err != nil {
		t.Errorf("%v, %v: %s", err, p.Err, out)
	}
}

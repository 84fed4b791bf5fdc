package linuxtest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// A function works with a stock guest. VF 1 of NIC 1 belongs to a bare client; its port is a device
// in the test's network namespace, over which the test talks to perftest's programs. Behind the
// port of VF 2, of the same NIC or of NIC 2, is a guest with Debian's kernel and rdma_rxe on its
// virtio-net device. Its address is no function's, so rdma.transport, which is auto, chooses RoCEv2
// for it.
const (
	roceLinuxNIC = `
nic: {host: %[1]d}
control: %[2]s/control%[1]d
uplink: {name: up%[1]d, bridge: ubr, mtu: 4500, address: 10.99.0.%[1]d/24, impair: {rx: %[3]s}}
cm: {listen: "127.0.0.1:747%[1]d", identity: %[2]s/keys}
peers:
  - {host: %[4]d, underlay: 10.99.0.%[4]d, cm: "127.0.0.1:747%[4]d", identity: vnic://lab/host/%[4]d, tenants: [100]}
functions:
  - pf: 0
    vfs:
`
	roceLinuxFunction = `      - {vf: 1, tenant: 100, address: %[1]s, guest: {unix: bare}, port: {mode: direct, name: vp1, addresses: [%[2]s]}}
`
	roceLinuxGuest = `      - {vf: 2, tenant: 100, address: 192.168.100.12, port: {mode: bridged, name: vp2, bridge: gbr2, addresses: [192.168.100.22, "fd00:100::22"]}}
`
	roceLinuxAttach = `attach:
  - {type: unix, name: bare, socket: %[1]s/bare.sock}
`
	// With the Linux driver, VF 1 and its port belong to a guest, too.
	roceDriverFunction = `      - {vf: 1, tenant: 100, address: %[1]s, guest: {cid: 1001}, port: {mode: bridged, name: vp1, bridge: gbr1, addresses: [%[2]s]}}
`
	roceDriverAttach = `attach:
  - {type: vhost-user, socket: %[1]s/guest1.sock, cid: 1001, windows: true}
`
)

// linuxSetting describes the surroundings of the stock guest.
type linuxSetting struct {
	gid    string // of the function
	two    bool   // two NICs; false: one
	driver bool   // the function is a guest's with the Linux driver
	iwarp  bool   // the functions use iWARP, the stock guest siw
	noCRC  bool   // iWARP has no checksums
	beside bool   // with driver: both guests have a virtio-net on a plain bridge too
	impair string // impairment of what the NICs receive from each other

	capture bool // and check every packet
	// outside: the stock guest is outside, not at a function's port
	outside *outsideSetting
}

// wire is how counters of the wire begin.
func (s *linuxSetting) wire() string {
	if s.iwarp {
		return "iwarp"
	}
	return "roce"
}

// config writes the configuration of a NIC.
func (s *linuxSetting) config(dir string, host int) string {
	impair := s.impair
	if impair == "" {
		impair = "{}"
	}
	text := fmt.Sprintf(roceLinuxNIC, host, dir, impair, 3-host)
	if s.iwarp {
		text = fmt.Sprintf("rdma: {transport: iwarp, crc: %t}%s", !s.noCRC, text)
	}
	if host == 1 {
		more := "192.168.100.11"
		if s.gid == more {
			more = ""
		}
		text += fmt.Sprintf(s.either(roceLinuxFunction, roceDriverFunction), s.gid, more)
	}
	if (host == 2) == s.two {
		text += s.stock()
	}
	if host == 1 {
		text += fmt.Sprintf(s.either(roceLinuxAttach, roceDriverAttach), dir)
	}
	return text
}

// stock returns the function that leads to the stock guest.
func (s *linuxSetting) stock() string {
	if s.outside != nil {
		return s.outside.function
	}
	return roceLinuxGuest
}

// either returns the first text for a bare client, the second for the driver.
func (s *linuxSetting) either(bare, driver string) string {
	if s.driver {
		return driver
	}
	return bare
}

// stockGuest is a guest whose init runs programs on a Soft-RoCE device.
func stockGuest(t testing.TB, ctx context.Context, programs ...string) qemu.Machine {
	t.Helper()
	vnictest.RequireGuests(t)
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	vnictest.Require(t, err == nil, fmt.Sprint("no guest kernel: ", err))
	dir := t.TempDir()
	init, initrd := filepath.Join(dir, "perfguest"), filepath.Join(dir, "initramfs.cpio")
	if err := vnictest.Build(init, "../../../qemu/perfguest"); err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, p := range programs {
		path, err := exec.LookPath(p)
		vnictest.Require(t, err == nil, p+" is not installed: apt-get install perftest ibverbs-providers")
		at = append(at, path)
	}
	if err := (image.Initramfs{Kernel: k, Init: init, Modules: slices.Concat(image.VsockModules, rxeModules), Programs: at, Files: rxeProvider}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	return qemu.Machine{Memory: 384, Kernel: k.Boot(), Initrd: initrd}
}

// TestRoCELinux: perftest's programs in a stock guest work with a function over RoCEv2. The guest
// is the requester of each operation, then the function is.
func TestRoCELinux(t *testing.T) {
	withLinux(t, linuxSetting{gid: "192.168.100.11", capture: true}, 20)
}

// TestLongRoCELinux is TestRoCELinux over IPv6, over two NICs with the tunnel between them, and
// there with losses, duplicates and packets out of order.
func TestLongRoCELinux(t *testing.T) {
	for name, s := range map[string]linuxSetting{
		"IPv6":     {gid: "fd00:100::11", capture: true},
		"two NICs": {gid: "192.168.100.11", two: true},
		"two NICs, IPv6, losses": {
			gid: "fd00:100::11", two: true, impair: "{loss: 1%, duplicate: 1%, reorder: 1%}",
		},
	} {
		t.Run(name, func(t *testing.T) { withLinux(t, s, 100) })
	}
}

// linuxOpcodes lists the opcodes that the programs use over reliable and unreliable connections:
// each side's requests and answers.
var linuxOpcodes = []int{6, 7, 8, 12, 13, 14, 15, 17, 18, 20, 0x26, 0x27, 0x28}

// withLinux runs all programs with n messages each.
func withLinux(t *testing.T, s linuxSetting, n int) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	const guest, own = "192.168.100.22", "192.168.100.11"
	ctx, cancel := context.WithTimeout(t.Context(), 2*vnictest.Limit)
	defer cancel()
	m := stockGuest(t, ctx, "ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat")
	index := 0
	if strings.Contains(s.gid, ":") {
		index = 1
	}
	flags := func(more string) string { return fmt.Sprintf(",-d,rxe0,-x,@%d,-F,-m,1024%s", index, more) }
	large, small := fmt.Sprintf(",-s,65536,-n,%d", n), fmt.Sprintf(",-s,5000,-n,%d", n)
	commands := []string{
		"ib_write_bw" + flags(large+",-c,UC") + "," + own,
		"ib_write_bw" + flags(large) + "," + own, "ib_read_bw" + flags(large) + "," + own,
		"ib_atomic_bw" + flags(",-n,50") + "," + own, "ib_send_bw" + flags(small) + "," + own,
		"ib_write_bw" + flags(large), "ib_read_bw" + flags(large), "ib_atomic_bw" + flags(",-n,50"),
		"ib_write_bw" + flags(large+",-c,UC"),
	}
	measured := []perf.Test{{Op: perf.Write}, {Op: perf.Read, Latency: true}, {Op: perf.Send}, {Op: perf.Write, Latency: true}, {Op: perf.Send, Latency: true}}
	if s.impair != "" { // write_lat ends before its last message is acknowledged
		measured = slices.DeleteFunc(measured, func(test perf.Test) bool { return test == perf.Test{Op: perf.Write, Latency: true} })
	}
	for _, to := range []string{"," + own, ""} {
		for _, test := range measured {
			commands = append(commands, "ib_"+test.String()+flags(small)+to)
		}
	}
	netns.Run(t, func() {
		l := newLinuxLab(t, ctx, s, m, append([]string{"programs", guest + "/24+fd00:100::22/64"}, commands...))
		defer l.stop()
		var captured func() string
		if s.capture {
			captured = l.capture(t)
		}
		p := newPerftestPeer(t, ctx, "unix://"+l.dir+"/bare.sock")
		server, err := net.Listen("tcp", fmt.Sprintf("%s:%d", own, perftest.Port))
		p.check(err)
		defer server.Close()
		for i, receives := range []int{0, 0, 0, 0, n + 1} {
			t.Logf("the guest is to run %s", commands[i])
			p.size, p.typ = 5000, 0
			if i == 0 {
				p.typ = guestlib.UC
			}
			clear(p.mr.Bytes())
			p.check(server.(*net.TCPListener).SetDeadline(time.Now().Add(vnictest.Limit)))
			for done := false; !done; {
				c, err := server.Accept()
				p.check(err)
				done = p.serve(c, receives)
			}
			l.check(t, p.mr.Bytes()[:4096])
		}
		p.check(server.Close()) // vnic guest perf listens on the same port
		to := fmt.Sprintf("%s:%d", guest, perftest.Port)
		p.drive(to, 1024, func(r *perftest.Keys) {
			p.post(n, 65536, guestlib.SendWR{Opcode: guestlib.Write, RemoteAddr: r.Addr, RKey: r.RKey})
		})
		l.nextResult(t)
		p.drive(to, 1024, func(r *perftest.Keys) {
			p.post(n, 65536, guestlib.SendWR{Opcode: guestlib.Read, RemoteAddr: r.Addr, RKey: r.RKey})
		})
		l.nextResult(t)
		p.drive(to, 1024, func(r *perftest.Keys) {
			p.post(50, 8, guestlib.SendWR{Opcode: guestlib.FetchAdd, RemoteAddr: r.Addr, RKey: r.RKey, CompareAdd: 1})
			for i := range uint64(50) {
				if got, first := binary.LittleEndian.Uint64(p.mr.Bytes()[8*i:]), binary.LittleEndian.Uint64(p.mr.Bytes()); got != first+i {
					t.Errorf("FETCH_ADD %d found %d, the first one %d", i, got, first)
				}
			}
		})
		l.nextResult(t)
		p.typ = guestlib.UC
		p.drive(to, 1024, func(r *perftest.Keys) {
			p.post(n, 65536, guestlib.SendWR{Opcode: guestlib.Write, RemoteAddr: r.Addr, RKey: r.RKey})
		})
		l.nextResult(t)
		p.check(p.dev.Close())
		for _, peer := range []string{"", guest} {
			for _, test := range measured {
				cfg := perf.Config{Test: test, URL: "unix://" + l.dir + "/bare.sock", Size: 5000, Iterations: n, MTU: 1024, Inline: -1, Meet: vnictest.Limit}
				if peer != "" {
					cfg.Peer, err = guestlib.ParseGID(peer)
					p.check(err)
				}
				rows, err := perf.Run(ctx, cfg)
				if err != nil {
					t.Fatalf("vnic guest perf %s %s and ib_%[1]s in the guest: %[3]v", test, peer, err)
				}
				if reported := peer != "" || test != (perf.Test{Op: perf.Read, Latency: true}); reported != (len(rows) == 1) || reported && rows[0].Iterations != n {
					t.Errorf("vnic guest perf %s %s: %+v", test, peer, rows)
				}
				l.nextResult(t)
			}
		}
		if c := l.counters(t, 1); s.impair != "" && c["roce.again"] == 0 {
			t.Error("nothing was lost")
		} else if c["roce.wrong"] != 0 || c["roce.sent"] == 0 {
			t.Errorf("%d packets sent, %d were wrong", c["roce.sent"], c["roce.wrong"])
		}
		if s.capture {
			l.checkCapture(t, captured(), linuxOpcodes, append([]int{0, 1, 2}, linuxOpcodes...))
		}
	})
}

// check checks what the guest's program did to the function's memory.
func (l *linuxLab) check(t testing.TB, memory []byte) {
	t.Helper()
	switch said := l.nextResult(t); {
	case strings.HasPrefix(said, "ib_read_"): // the guest only reads
	case !strings.HasPrefix(said, "ib_atomic"):
		if bytes.Equal(memory, make([]byte, len(memory))) {
			t.Errorf("%s: nothing arrived", said)
		}
	default:
		if n := sum(memory); n != 50 {
			t.Errorf("50 FETCH_ADDs of the guest added %d", n)
		}
	}
}

// linuxLab is one or two NICs with a stock guest behind a port.
type linuxLab struct {
	dir   string
	mac   string // of the guest's function
	hosts int    // NICs
	vm    *qemu.Process
	lines *bufio.Scanner
	t     testing.TB
	ends  []func()
}

// stop ends the guest and the NICs. It runs on the thread that started them, since they die with
// that thread.
func (l *linuxLab) stop() {
	if l.t.Failed() {
		l.report(l.t)
	}
	for _, end := range slices.Backward(l.ends) {
		end()
	}
}

func newLinuxLab(t testing.TB, ctx context.Context, s linuxSetting, m qemu.Machine, args []string) *linuxLab {
	t.Helper()
	l := newLinuxNICs(t, ctx, s)
	ip(t, "link set vp1 up", "addr add 192.168.100.11/24 dev vp1")
	l.boot(t, ctx, m, args)
	return l
}

// newLinuxNICs is the lab without the guest.
func newLinuxNICs(t testing.TB, ctx context.Context, s linuxSetting) *linuxLab {
	t.Helper()
	dir, err := os.MkdirTemp("", "vnic-roce-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := cmlink.Init(filepath.Join(dir, "keys"), "lab", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	ip(t, "link add ubr mtu 4500 type bridge", "link set ubr up")
	for _, bridge := range []string{"gbr1", "gbr2"} {
		ip(t, "link add "+bridge+" type bridge", "link set "+bridge+" arp off up") // the bridge must not answer ARP for vp1
	}
	hosts := 1
	if s.two {
		hosts = 2
	}
	l := &linuxLab{t: t, dir: dir, hosts: hosts, mac: config.FunctionMAC(fmt.Sprint(hosts), 0, 2).String()}
	for host := range hosts {
		l.start(t, ctx, host+1, s.config(dir, host+1))
	}
	return l
}

// start starts a NIC.
func (l *linuxLab) start(t testing.TB, ctx context.Context, host int, text string) {
	t.Helper()
	file := filepath.Join(l.dir, fmt.Sprintf("nic%d.yaml", host))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	nic := exec.CommandContext(ctx, vnictest.Program(t), "run", "-c", file)
	nic.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	nic.Cancel = func() error { return nic.Process.Signal(syscall.SIGTERM) }
	var log bytes.Buffer
	nic.Stderr = &log
	if err := nic.Start(); err != nil {
		t.Fatal(err)
	}
	l.ends = append(l.ends, func() {
		_ = nic.Process.Signal(syscall.SIGTERM)
		if err := nic.Wait(); err != nil || t.Failed() {
			t.Errorf("vnic run: %v\n%s", err, &log)
		}
	})
	if _, stderr, code := vnictest.Run(t, "wait", "-s", l.control(host)); code != 0 {
		t.Fatalf("%s\n%s", stderr, &log)
	}
}

func (l *linuxLab) control(host int) string {
	return filepath.Join(l.dir, fmt.Sprintf("control%d", host))
}

// counters returns the counters of a NIC.
func (l *linuxLab) counters(t testing.TB, host int) control.Counters {
	t.Helper()
	c, err := control.NewClient(l.control(host)).Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ip runs commands of ip in the test's namespace.
func ip(t testing.TB, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", c, err, out)
		}
	}
}

// boot boots the guest behind the bridge gbr2.
func (l *linuxLab) boot(t testing.TB, ctx context.Context, m qemu.Machine, args []string) {
	t.Helper()
	const mtu = 4400
	nic, err := tap.OpenGuest("guest2", "gbr2", mtu)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	console := filepath.Join(l.dir, "guest.log")
	m.Console, m.InitArgs = qemu.FileChardev(console), args
	m.KernelArgs = stockKernel
	m.NICs = []qemu.NIC{{TAP: nic, MAC: l.mac, MTU: mtu}}
	vm, err := qemu.Start(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	l.ends = append(l.ends, func() {
		if text, _ := os.ReadFile(console); t.Failed() {
			keepLog(t, "guest", text)
		}
		_ = vm.Stop()
	})
	l.vm, l.lines = vm, bufio.NewScanner(vm.Output())
}

// sum adds up the words in b.
func sum(b []byte) (n uint64) {
	for ; len(b) >= 8; b = b[8:] {
		n += binary.LittleEndian.Uint64(b)
	}
	return n
}

// nextResult waits for the end of a program in the guest, and returns its command.
func (l *linuxLab) nextResult(t testing.TB) string {
	t.Helper()
	var line struct{ System, Test, Output string }
	if !l.lines.Scan() {
		t.Fatalf("the guest ended: %v", l.lines.Err())
	}
	if err := json.Unmarshal(l.lines.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, l.lines.Text())
	}
	t.Logf("%s\n%s", line.Test, rxeRow.FindString(strings.ReplaceAll(line.Output, "\t", " ")))
	return line.Test
}

// stockKernel makes a guest's kernel print all messages on its console, and allows SysRq, which
// prints what tasks and processors do.
var stockKernel = []string{"ignore_loglevel", "sysrq_always_enabled"}

// report logs the state of the NICs and the guest of a failed test, since otherwise nobody can tell
// what is stuck.
func (l *linuxLab) report(t testing.TB) {
	t.Helper()
	for host := 1; host <= l.hosts; host++ {
		for _, what := range []string{"counters", "functions", "connections", "qps", "queues", "routes", "uplinks"} {
			out, stderr, _ := vnictest.Run(t, "show", what, "-s", l.control(host))
			t.Logf("NIC %d: vnic show %s\n%s%s", host, what, out, stderr)
		}
	}
	if l.vm != nil {
		askKernel(t, l.vm)
	}
}

// askKernel makes a guest print on its console what its processors and tasks do. It uses the
// keyboard's interrupt, which works even if no program gets processor time.
func askKernel(t testing.TB, vm *qemu.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	type key struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	for _, letter := range []string{"l", "w", "m", "t"} {
		keys := []key{{"qcode", "alt"}, {"qcode", "sysrq"}, {"qcode", letter}}
		if err := vm.QMP().Execute(ctx, "send-key", map[string]any{"keys": keys}, nil); err != nil {
			t.Logf("guest: SysRq %s: %v", letter, err)
			return
		}
		time.Sleep(time.Second) // the kernel does not confirm it
	}
}

// keepLog writes a guest's console to the folder in VNIC_DRIVER_LOG, or to the test's log.
func keepLog(t testing.TB, name string, text []byte) {
	if dir := os.Getenv("VNIC_DRIVER_LOG"); dir != "" {
		file := filepath.Join(dir, fmt.Sprintf("%s.%d.log", name, os.Getpid()))
		_ = os.WriteFile(file, text, 0o600)
		t.Logf("%s: %s", name, file)
		return
	}
	t.Logf("%s:\n%s", name, text)
}

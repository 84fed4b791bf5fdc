package tunneltest_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// pairOfHosts are two hosts, each in a network namespace of its own, with a network
// between them, and a guest's namespace behind each:
//
//	guest 1 ─ veth ─ bridge gbr ─ port ─ vnic run ─ uplink ═ network ═ uplink ─ vnic run ─ port in guest 2
//
// The first guest's interface has the function's MAC, as a virtio-net would; the
// second's is the port itself, which persists.
type pairOfHosts struct {
	t             testing.TB
	network       network
	dir           string
	hosts, guests [2]*netns.Space
	nics          [2]*labkit.Process
}

// network is what joins two hosts.
type network interface {
	// join connects the hosts' namespaces.
	join(p *pairOfHosts) error
	// wire sets the wire between the hosts.
	wire(set func(netlink.Link) error) error
	// cm returns the address of a host's connection manager.
	cm(i int) string
	// uplink returns a NIC's section uplink, and underlay where its peer finds it.
	uplink(i int) string
	underlay(i int) string
	// nic returns further keys of the section nic of a NIC's configuration.
	nic() string
	// room returns the MTU of a guest.
	room() int
}

// bridged joins hosts by a veth between their bridges, which the NICs' TAPs are on:
//
//	uplink ─ br0 ═ veth ═ br0 ─ uplink
//
// The hosts' own addresses, for the connection managers, are on their br0.
type bridged struct{ host *netns.Space }

const bridgedMTU = 4500

func (*bridged) cm(i int) string       { return fmt.Sprintf("10.96.0.%d", i+1) }
func (*bridged) underlay(i int) string { return fmt.Sprintf("10.95.0.%d", i+1) }
func (*bridged) room() int             { return bridgedMTU - vnictest.Sealed }
func (*bridged) nic() string           { return "" }

func (*bridged) uplink(i int) string {
	return fmt.Sprintf("{name: up, bridge: br0, mtu: %d, address: 10.95.0.%d/24}", bridgedMTU, i+1)
}

func (b *bridged) join(p *pairOfHosts) error {
	b.host = p.hosts[0]
	for i, s := range p.hosts {
		err := s.Do(func() error {
			if err := tap.NewBridge("br0", bridgedMTU); err != nil {
				return err
			}
			// A bridge with a MAC of its own does not adopt that of a new port.
			br0, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetHardwareAddr(br0, net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)}), netns.Up("br0", b.cm(i)+"/24"))
		})
		if err != nil {
			return err
		}
	}
	return b.host.Do(func() error {
		return errors.Join(
			labkit.Veth("wire", "wire2", bridgedMTU), labkit.Plug("wire", "br0"), netns.Up("wire"), p.hosts[1].Take("wire2"),
			p.hosts[1].Do(func() error { return labkit.Plug("wire2", "br0") }),
		)
	})
}

func (b *bridged) wire(set func(netlink.Link) error) error {
	return b.host.Do(func() error { return onLink("wire", set) })
}

func onLink(name string, set func(netlink.Link) error) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return set(l)
}

func guestAddress(i int) string { return fmt.Sprintf("192.168.96.1%d", i+1) }

func (p *pairOfHosts) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pairOfHosts) file(kind string, i int) string {
	return filepath.Join(p.dir, fmt.Sprintf("%s%d", kind, i+1))
}

func newPairOfHosts(t testing.TB, n network) *pairOfHosts {
	t.Helper()
	dir, err := os.MkdirTemp("", "vnic-two-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &pairOfHosts{t: t, network: n, dir: dir}
	t.Cleanup(func() {
		for i := range p.hosts {
			if p.nics[i] != nil {
				p.nics[i].Stop(5 * time.Second)
			}
			if text, _ := os.ReadFile(p.file("log", i)); t.Failed() {
				t.Logf("host %d:\n%s", i+1, text)
			}
			for _, s := range []*netns.Space{p.hosts[i], p.guests[i]} {
				if s != nil {
					_ = s.Close()
				}
			}
		}
		_ = os.RemoveAll(dir)
	})
	p.must(cmlink.Init(filepath.Join(dir, "keys"), "two", []string{"1", "2"}))
	for i := range p.hosts {
		p.hosts[i], err = netns.NewSpace()
		p.must(err)
		p.guests[i], err = netns.NewSpace()
		p.must(err)
		p.must(p.hosts[i].Do(func() error { return p.furnish(i) }))
		p.must(os.WriteFile(p.file("yaml", i), p.config(i), 0o644))
	}
	p.must(n.join(p))
	return p
}

// furnish creates the interface of a host's guest.
func (p *pairOfHosts) furnish(i int) error {
	if i == 1 {
		return nil // its port is in the guest
	}
	mtu := p.network.room()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "g0", MTU: mtu}, PeerName: "eth0", PeerMTU: uint32(mtu), PeerHardwareAddr: net.HardwareAddr{2, 0x56, 0x4e, byte(i + 1), 0, 1}}
	if err := errors.Join(tap.NewBridge("gbr", mtu), netlink.LinkAdd(v), labkit.Plug("g0", "gbr"), netns.Up("g0")); err != nil {
		return err
	}
	return p.guests[i].Take("eth0", guestAddress(i)+"/24")
}

func (p *pairOfHosts) config(i int) []byte {
	port := "{mode: bridged, name: port, bridge: gbr}"
	if i == 1 {
		port = "{mode: direct, name: eth0, netns: " + p.guests[1].Path() + ", persist: true}"
	}
	return fmt.Appendf(nil, `
nic: {host: %[1]d%[12]s}
control: %[3]s
uplink: %[4]s
psp: {rotate_every: 1s}
cm: {listen: "%[5]s:7471", identity: %[7]s}
peers:
  - {host: %[2]d, underlay: "%[11]s", cm: "%[6]s:7471", identity: "vnic://two/host/%[2]d", tenants: [7]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 7, address: %[8]s, guest: {unix: guest}, port: %[10]s}
attach:
  - {type: unix, name: guest, socket: %[9]s}
`, i+1, 2-i, p.file("ctl", i), p.network.uplink(i), p.network.cm(i), p.network.cm(1-i), filepath.Join(p.dir, "keys"), guestAddress(i), p.file("sock", i), port,
		p.network.underlay(1-i), p.network.nic())
}

func (p *pairOfHosts) control(i int) *control.Client { return control.NewClient(p.file("ctl", i)) }

// start starts a host's NIC and waits until it knows its peer's functions.
func (p *pairOfHosts) start(is ...int) {
	p.t.Helper()
	for _, i := range is {
		p.must(p.hosts[i].Do(func() (err error) {
			p.nics[i], err = labkit.Start(fmt.Sprintf("host %d", i+1), p.file("log", i), vnictest.Program(p.t), "run", "-c", p.file("yaml", i))
			return err
		}))
	}
	for i := range p.hosts {
		vnictest.Eventually(p.t, "hosts joined", func() error {
			n, err := p.control(i).NIC(context.Background())
			if err == nil && (!n.Peers[0].Up || n.Peers[0].Functions == 0) {
				err = fmt.Errorf("host %d: peer %+v", i+1, n.Peers[0])
			}
			return err
		})
	}
}

// rdma starts the workload between two bare clients and returns how to wait for
// both.
func (p *pairOfHosts) rdma(count int) (wait func() [2]string) {
	p.t.Helper()
	var lines [2]*bufio.Scanner
	for i := range p.hosts {
		order := []string{"--first", "--second"}[i]
		cmd := exec.Command(vnictest.Program(p.t), "guest", "workload", "-d", "unix://"+p.file("sock", i), order, "--peer", guestAddress(1-i), "--count", fmt.Sprint(count), "--recover", "0s")
		out, in, err := os.Pipe()
		p.must(err)
		p.t.Cleanup(func() { out.Close() })
		cmd.Stdout = in
		c, err := labkit.StartCommand(fmt.Sprintf("client %d", i+1), cmd)
		p.must(err)
		p.t.Cleanup(func() { c.Stop(0) })
		in.Close()
		lines[i] = bufio.NewScanner(out)
	}
	return func() (last [2]string) {
		for i, l := range lines {
			for l.Scan() {
				if line, err := workload.DecodeOutput(l.Bytes()); err == nil {
					last[i] = line.Kind + " " + line.Text
				}
			}
		}
		return last
	}
}

// stream is a TCP connection between the guests. Each byte depends on its position. Both ends send
// and check all the time.
type stream struct {
	conns    [2]net.Conn
	received [2]atomic.Int64
	failed   chan error
	stop     chan struct{}
	sent     chan int64 // of each end, when it has stopped
}

// streamPause leaves the processor to others between two writes.
const streamPause = 2 * time.Millisecond

func (p *pairOfHosts) stream() *stream {
	p.t.Helper()
	s := &stream{failed: make(chan error, 4), stop: make(chan struct{}), sent: make(chan int64, 2)}
	var l net.Listener
	p.must(p.guests[1].Do(func() (err error) {
		l, err = net.Listen("tcp", guestAddress(1)+":7000")
		return err
	}))
	defer l.Close()
	p.must(p.guests[0].Do(func() (err error) {
		s.conns[0], err = net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
		return err
	}))
	var err error
	s.conns[1], err = l.Accept()
	p.must(err)
	for i := range s.conns {
		p.t.Cleanup(func() { s.conns[i].Close() })
		go s.send(i)
		go s.check(i)
	}
	return s
}

// fillStream fills a buffer with what an end's stream has at a position.
func fillStream(b []byte, end int, position int64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(position+int64(i))*0x9e3779b97f4a7c15+uint64(end))
	}
}

func (s *stream) send(end int) {
	b, sent := make([]byte, 32<<10), int64(0)
	defer func() { s.sent <- sent }()
	for {
		fillStream(b, end, sent)
		if _, err := s.conns[end].Write(b); err != nil {
			s.failed <- fmt.Errorf("end %d after %d bytes: %w", end, sent, err)
			return
		}
		sent += int64(len(b))
		select {
		case <-s.stop:
			return
		case <-time.After(streamPause):
		}
	}
}

func (s *stream) check(end int) {
	b, want, at := make([]byte, 1<<16), make([]byte, 1<<16+16), int64(0)
	for {
		n, err := s.conns[end].Read(b)
		if err != nil {
			return // send says why
		}
		skip := int(at % 8)
		fillStream(want[:(skip+n+7)/8*8], 1-end, at-int64(skip))
		if string(want[skip:skip+n]) != string(b[:n]) {
			s.failed <- fmt.Errorf("end %d: wrong bytes between %d and %d", end, at, at+int64(n))
			return
		}
		at += int64(n)
		s.received[end].Store(at)
	}
}

// moves waits until both ends have received more bytes.
func (s *stream) moves(t testing.TB, when string) {
	t.Helper()
	before := [2]int64{s.received[0].Load(), s.received[1].Load()}
	vnictest.Eventually(t, "TCP "+when, func() error {
		select {
		case err := <-s.failed:
			t.Fatalf("TCP %s: %v", when, err)
		default:
		}
		for i := range before {
			if got := s.received[i].Load(); got < before[i]+1<<20 {
				return fmt.Errorf("end %d has received %d bytes, %d before", i, got, before[i])
			}
		}
		return nil
	})
}

// finish stops the senders and checks that everything sent has arrived.
func (s *stream) finish(t testing.TB) {
	t.Helper()
	close(s.stop)
	total := <-s.sent + <-s.sent
	vnictest.Eventually(t, "the rest of the streams", func() error {
		if got := s.received[0].Load() + s.received[1].Load(); got != total {
			return fmt.Errorf("%d bytes received, %d sent", got, total)
		}
		return nil
	})
	t.Logf("TCP: %d bytes, every one checked", total)
}

// TestTwoHosts carries RDMA and a TCP connection at once between two hosts while the keys rotate
// every second, the network loses and delays packets, the uplink and the wire go down, and a NIC
// restarts. TCP and Falcon recover all losses. RDMA connections end with their NIC and are made
// again; the TCP connection stays.
func TestTwoHosts(t *testing.T) { betweenHosts(t, &bridged{}) }

func betweenHosts(t *testing.T, n network) {
	vnictest.RequireRoot(t)
	netns.Run(t, func() {
		p := newPairOfHosts(t, n)
		p.start(0, 1)
		p.must(p.guests[1].Do(func() error { return netns.Up("eth0", guestAddress(1)+"/24") }))
		s := p.stream()
		s.moves(t, "at first")
		began := time.Now()
		say := func(what string) { t.Logf("%5.1f s: %s", time.Since(began).Seconds(), what) }
		for _, disturb := range p.disturbances() {
			say(disturb.name)
			done := p.rdma(10)
			disturb.begin()
			s.moves(t, disturb.name)
			p.verified(done())
		}
		for i := range p.nics {
			c, err := p.control(i).Counters(context.Background())
			p.must(err)
			if c["psp.rotations"] < 3 || c["impair.tx_lost"]+c["impair.rx_lost"] == 0 && i == 0 || c["drop.psp_auth"] != 0 {
				t.Errorf("host %d: %d rotations, %d and %d packets lost on purpose, %d failed to open", i+1, c["psp.rotations"], c["impair.tx_lost"], c["impair.rx_lost"], c["drop.psp_auth"])
			}
		}

		for i := range p.nics {
			say("load")
			done := p.rdma(100_000)
			p.connected()
			s.moves(t, "beside more RDMA")
			say(fmt.Sprintf("restart of NIC %d", i+1))
			p.must(p.nics[i].Cmd.Process.Signal(syscall.SIGTERM))
			<-p.nics[i].Done
			p.start(i)
			say("restarted")
			for j, last := range done() {
				if len(last) < 6 || last[:6] != "error " {
					t.Errorf("client %d heard nothing of the restart of NIC %d: %s", j+1, i+1, last)
				}
			}
			say("clients ended")
			s.moves(t, "after a NIC's restart")
		}
		say("work again")
		p.verified(p.rdma(3)())
		s.finish(t)
	})
}

// connected waits until RDMA runs.
func (p *pairOfHosts) connected() {
	p.t.Helper()
	for i := range p.nics {
		vnictest.Eventually(p.t, "RDMA", func() error {
			cs, err := p.control(i).Connections(context.Background())
			if err == nil && (len(cs) != 1 || cs[0].State != "ESTABLISHED") {
				err = fmt.Errorf("host %d: %+v", i+1, cs)
			}
			return err
		})
	}
}

func (p *pairOfHosts) verified(last [2]string) {
	p.t.Helper()
	for i, l := range last {
		if len(l) < 5 || l[:5] != "done " {
			p.t.Errorf("client %d: %s", i+1, l)
		}
	}
}

// disturbance is one kind of trouble.
type disturbance struct {
	name  string
	begin func()
}

// outage is how long a link is down.
const outage = 700 * time.Millisecond

func (p *pairOfHosts) disturbances() []disturbance {
	inject := func(set string) {
		p.t.Helper()
		_, err := p.control(0).InjectLink(context.Background(), control.LinkChange{Clear: true, Set: []byte(set)})
		p.must(err)
	}
	return []disturbance{
		{"while keys rotate", func() { time.Sleep(2 * time.Second) }},
		{"over a bad network", func() { inject(`{"loss": 0.01, "reorder": 0.02, "duplicate": 0.01, "mark": 0.02}`) }},
		{"after the uplink was down", func() {
			inject(`{"down": true}`)
			time.Sleep(outage)
			inject(`{}`)
		}},
		{"after the wire was down", func() {
			p.must(p.network.wire(netlink.LinkSetDown))
			time.Sleep(outage)
			p.must(p.network.wire(netlink.LinkSetUp))
		}},
	}
}

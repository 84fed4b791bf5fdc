package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// hostsOf is a fleet of NIC processes and members of etcd, each in a network namespace of its own, on
// one bridge. Each NIC has a function at 192.168.50.N of tenant 1, whose port is in a guest, another
// namespace.
type hostsOf struct {
	*world
	run    string
	hosts  []*hostNIC
	routed bool // further hosts reach all others by a router
}

// cable joins a new namespace to the bridge. The end there is named after the namespace.
func cable(t testing.TB, name, address string) *netns.Space {
	t.Helper()
	in, err := netns.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	if err := errors.Join(labkit.Veth(name, name+"e", 1500), labkit.Plug(name, "net"), netns.Up(name), in.Take(name+"e", address)); err != nil {
		t.Fatal(err)
	}
	return in
}

// routes joins a new namespace to the bridge, as cable does. Its only neighbour is the test's namespace, which
// routes: the kernel has one table of neighbours for all namespaces, with room for 1024.
func (w *hostsOf) routes(name, address string) *netns.Space {
	w.t.Helper()
	in := cable(w.t, name, address+"/32")
	router := net.IPv4(10, 98, 255, 1)
	err := in.Do(func() error {
		l, err := netlink.LinkByName(name + "e")
		if err != nil {
			return err
		}
		return errors.Join(netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: router, Mask: net.CIDRMask(32, 32)}}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: router}))
	})
	for file, value := range map[string]string{"ip_forward": "1", "conf/all/send_redirects": "0", "conf/net/send_redirects": "0"} {
		err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return in
}

type hostNIC struct {
	*hostsOf
	i       int
	name    string
	keys    string
	control string
	in      *netns.Space
	guest   *netns.Space
	p       *labkit.Process
	echoes  func() // ends echo
}

// inFleet calls f with a fleet of some hosts, whose NICs do not run yet.
func inFleet(t testing.TB, hosts int, f func(w *hostsOf)) {
	t.Helper()
	inFleetOf(t, 1, hosts, hostLife, f)
}

// inFleetOf is inFleet with some members of etcd, and certificates that are good for a while.
func inFleetOf(t testing.TB, members, hosts int, life time.Duration, f func(w *hostsOf)) {
	t.Helper()
	vnictest.RequireRoot(t)
	vnictest.RequireEtcd(t)
	vnictest.Program(t)
	run, err := os.MkdirTemp("", "vnic-fleet-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	netns.Run(t, func() {
		if err := errors.Join(tap.NewBridge("net", 1500), netns.Up("net", "10.98.255.1/16")); err != nil {
			t.Fatal(err)
		}
		w := &hostsOf{world: &world{t: t, dir: filepath.Join(vnictest.EtcdDir(t), "fleet"), endpoint: "https://10.98.200.1:2379", apart: true}, run: run}
		for i := range members {
			at := fmt.Sprintf("10.98.200.%d", i+1)
			w.spaces = append(w.spaces, cable(t, fmt.Sprint("m", i+1), at+"/16"))
			if i > 0 {
				w.more = append(w.more, "https://"+at+":2379")
			}
		}
		w.make()
		signer, err := labkit.Start("signer", run+"/signer.log", vnictest.Program(t), "fleet", "watch", "--sign", "--life", life.String(), "--dir", w.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer signer.Stop(10 * time.Second)
		defer w.end()
		for range hosts {
			h := w.newHost()
			h.keys = w.joins(h.name, fmt.Sprintf("1:%s", h.address()))
			h.configure(h.port())
		}
		f(w)
	})
}

// newHost makes the namespaces of one more host, which has not joined yet.
func (w *hostsOf) newHost() *hostNIC {
	w.t.Helper()
	i := len(w.hosts)
	h := &hostNIC{hostsOf: w, i: i, name: fmt.Sprintf("host%d.lab", i+1), control: fmt.Sprintf("%s/%d.ctl", w.run, i+1)}
	at, name := fmt.Sprintf("10.98.0.%d", i+1), fmt.Sprint("h", i+1)
	if w.routed {
		h.in = w.routes(name, at)
	} else {
		h.in = cable(w.t, name, at+"/16")
	}
	var err error
	if h.guest, err = netns.NewSpace(); err != nil {
		w.t.Fatal(err)
	}
	w.hosts = append(w.hosts, h)
	return h
}

// port is the setting by which the host's function has its port in the host's guest.
func (h *hostNIC) port() string {
	return "port: {name: eth0, mode: direct, netns: " + h.guest.Path() + "}"
}

func (w *hostsOf) end() {
	for _, h := range w.hosts {
		if h.p != nil {
			_ = h.p.Cmd.Process.Signal(syscall.SIGTERM) // all at once
		}
	}
	for _, h := range w.hosts {
		if h.p != nil {
			h.p.Stop(10 * time.Second)
		}
		if w.t.Failed() {
			b, _ := os.ReadFile(h.log())
			w.t.Logf("%s:\n%s", h.name, b)
		}
		if h.echoes != nil {
			h.echoes()
		}
		_ = h.guest.Close()
	}
}

func (h *hostNIC) address() string { return fmt.Sprintf("192.168.50.%d", h.i+1) }
func (h *hostNIC) mac() string     { return fmt.Sprintf("02:56:4e:50:00:%02x", h.i+1) }
func (h *hostNIC) log() string     { return fmt.Sprintf("%s/%d.log", h.run, h.i+1) }
func (h *hostNIC) file() string    { return fmt.Sprintf("%s/%d.yaml", h.run, h.i+1) }

// configure writes the host's configuration; more is of its function.
func (h *hostNIC) configure(more string) {
	h.t.Helper()
	text := fmt.Sprintf(`
nic: {host: 1, shards: 1}
control: %s
uplink: {type: udp, listen: 10.98.0.%d:1000}
cm: {listen: 10.98.0.%d:7471, name: %s, identity: %s}
directory: {etcd: {endpoints: [%s], prefix: /vnic/lab}}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 1, address: %s, mac: '%s', guest: {unix: guest}, %s}
attach: [{type: unix, name: guest, socket: %s/%d.sock}]
`, h.control, h.i+1, h.i+1, h.name, h.keys, strings.Join(h.is.Endpoints, ", "), h.address(), h.mac(), more, h.run, h.i+1)
	if err := os.WriteFile(h.file(), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// start starts the NIC and waits until it serves.
func (h *hostNIC) start() {
	h.t.Helper()
	h.launch()
	ctx, cancel := context.WithTimeout(context.Background(), vnictest.Limit)
	defer cancel()
	err := h.p.Until(ctx, func(ctx context.Context) error { _, err := h.client().NIC(ctx); return err })
	if err != nil {
		b, _ := os.ReadFile(h.log())
		h.t.Fatalf("%v\n%s", err, b)
	}
}

// launch starts the NIC.
func (h *hostNIC) launch() {
	h.t.Helper()
	start := func() (err error) {
		h.p, err = labkit.Start(h.name, h.log(), vnictest.Program(h.t), "run", "-c", h.file())
		return err
	}
	if err := h.in.Do(start); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostNIC) client() *control.Client { return control.NewClient(h.control) }

// owns gives the guest's device its address.
func (h *hostNIC) owns() {
	h.t.Helper()
	vnictest.Eventually(h.t, "the port", func() error {
		return h.guest.Do(func() error { return netns.Up("eth0", h.address()+"/24") })
	})
}

// sees waits until the NIC has these peers, all with functions, and no others.
func (h *hostNIC) sees(others ...*hostNIC) {
	h.t.Helper()
	vnictest.Eventually(h.t, h.name+" has its peers", func() error {
		list, err := h.client().Peers(context.Background())
		if err != nil {
			return err
		}
		if len(list) != len(others) {
			return fmt.Errorf("%d peers of %d: %+v", len(list), len(others), list)
		}
		for _, p := range list {
			if !p.Up || p.Functions == 0 {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
}

// start starts all NICs, and waits until they have each other.
func (w *hostsOf) start() {
	w.t.Helper()
	for _, h := range w.hosts {
		h.start()
	}
	w.meet()
}

// meet waits until all NICs that run have each other.
func (w *hostsOf) meet() {
	w.t.Helper()
	var on []*hostNIC
	for _, h := range w.hosts {
		if h.p != nil {
			on = append(on, h)
		}
	}
	for _, h := range on {
		h.sees(on[1:]...) // as many as the others
	}
}

// status returns how a NIC's part in the fleet goes.
func (h *hostNIC) status() control.Directory {
	h.t.Helper()
	d, err := h.client().Directory(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

// echo answers at port 7 of the guest until the test ends.
func (h *hostNIC) echo() {
	h.t.Helper()
	var l net.Listener
	err := h.guest.Do(func() (err error) {
		l, err = net.Listen("tcp", h.address()+":7")
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	var u net.PacketConn
	if err := h.guest.Do(func() (err error) { u, err = net.ListenPacket("udp", h.address()+":7"); return err }); err != nil {
		h.t.Fatal(err)
	}
	holdsMany(h.t, u)
	var serving sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	h.echoes = func() { end(); _ = l.Close(); _ = u.Close(); serving.Wait() }
	serving.Go(func() {
		b := make([]byte, 64)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(b[:n], from)
		}
	})
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ended, func() { _ = c.Close() }) // a test that fails does not end its streams
			serving.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
}

// stream is a TCP connection that is used all the time.
type stream struct {
	conn  net.Conn
	stop  chan struct{}
	ended chan error
	worst time.Duration // between two answers
	count atomic.Int64
}

// talks connects the guest to another one's port 7 and sends without end.
func (h *hostNIC) talks(to *hostNIC) *stream {
	h.t.Helper()
	s := &stream{stop: make(chan struct{}), ended: make(chan error, 1)}
	vnictest.Eventually(h.t, "a connection", func() error {
		return h.guest.Do(func() (err error) {
			s.conn, err = net.DialTimeout("tcp", to.address()+":7", time.Second)
			return err
		})
	})
	go func() { s.ended <- s.run(); _ = s.conn.Close() }()
	return s
}

func (s *stream) run() error {
	b := make([]byte, 64)
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return nil
		default:
		}
		_ = s.conn.SetDeadline(time.Now().Add(vnictest.Limit))
		if _, err := s.conn.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(s.conn, b); err != nil {
			return err
		}
		s.worst = max(s.worst, time.Since(last))
		last = time.Now()
		s.count.Add(1)
		time.Sleep(time.Millisecond)
	}
}

// probes sends a datagram to another guest's port 7 each millisecond until stop is called, which returns
// the longest time in which what was sent had no answer. An answer may come late: on a busy machine this
// process, too, has to wait for a processor.
func (h *hostNIC) probes(to *hostNIC) (stop func() time.Duration) {
	h.t.Helper()
	var c net.Conn
	if err := h.guest.Do(func() (err error) { c, err = net.Dial("udp", to.address()+":7"); return err }); err != nil {
		h.t.Fatal(err)
	}
	holdsMany(h.t, c)
	var sent []time.Time // by number
	answered := map[uint64]bool{}
	var sending, reading sync.WaitGroup
	ended := make(chan struct{})
	sending.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = c.Write(binary.BigEndian.AppendUint64(nil, uint64(len(sent))))
				sent = append(sent, time.Now())
			case <-ended:
				return
			}
		}
	})
	reading.Go(func() {
		b := make([]byte, 8)
		for {
			if n, err := c.Read(b); errors.Is(err, net.ErrClosed) {
				return
			} else if err == nil && n == len(b) {
				answered[binary.BigEndian.Uint64(b)] = true
			}
		}
	})
	return func() (worst time.Duration) {
		close(ended)
		sending.Wait()
		_ = c.Close()
		reading.Wait()
		for i, last := 0, -1; i < len(sent); i++ {
			if !answered[uint64(i)] {
				continue
			}
			if last >= 0 && last+1 < i {
				worst = max(worst, sent[i].Sub(sent[last+1]))
			}
			last = i
		}
		return worst
	}
}

// holdsMany makes a socket hold some thousand datagrams until they are read.
func holdsMany(t testing.TB, c any) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		err = errors.Join(err, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) }))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// goesOn waits for some answers more.
func (s *stream) goesOn(t testing.TB) {
	t.Helper()
	before := s.count.Load()
	vnictest.Eventually(t, "answers", func() error {
		select {
		case err := <-s.ended:
			t.Fatal(err)
		default:
		}
		if n := s.count.Load() - before; n < 50 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// end stops the stream and fails the test if it broke.
func (s *stream) end(t testing.TB) {
	t.Helper()
	close(s.stop)
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// TestHostsFindEachOtherByEtcd: NICs that name no peers have each other, and nobody else; one that ends
// leaves, one that is revoked is out for all, and one that claims another's address does not get it.
func TestHostsFindEachOtherByEtcd(t *testing.T) {
	inFleet(t, 3, func(w *hostsOf) {
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		a.start()
		b.start()
		w.meet()
		a.owns()
		b.owns()
		b.echo()
		s := a.talks(b)

		// A NIC starts while etcd is away: it serves, says why it has no peers, and has them later.
		w.member.Stop()
		c.start()
		vnictest.Eventually(t, "a word about etcd", func() error {
			if d := c.status(); d.Watching || !strings.Contains(d.Reading, "etcd is not reached") {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
		if fs, err := c.client().Functions(context.Background()); err != nil || fs[1].State != "RESET" {
			t.Error(fs, err)
		}
		w.member.Continue()
		w.meet()

		// c says that it has what is a's.
		peers, err := c.client().Peers(context.Background())
		if err != nil || len(peers) != 2 {
			t.Fatal(peers, err)
		}
		if _, err := c.client().ChangeFunction(context.Background(), control.FunctionChange{Function: "pf0.vf2", Action: "enable", Set: map[string]string{"tenant": "1", "address": "192.168.50.77"}}); err != nil {
			t.Fatal(err)
		}
		vnictest.Eventually(t, "a refusal", func() error {
			if d := a.status(); len(d.Refused) != 1 || d.Refused[0].Host != c.name || !strings.Contains(d.Refused[0].Why, "not granted") {
				return fmt.Errorf("%+v", d.Refused)
			}
			if n, err := a.client().Counters(context.Background()); err != nil || n["directory.refused"] != 1 || n["directory.watching"] != 1 {
				return fmt.Errorf("%d refused, %v", n["directory.refused"], err)
			}
			return nil
		})
		w.must("allow", c.name, "1:192.168.50.77")
		vnictest.Eventually(t, "no refusal", func() error {
			if d := a.status(); len(d.Refused) != 0 {
				return fmt.Errorf("%+v", d.Refused)
			}
			return nil
		})

		// Revoking one leaves the others alone.
		at := time.Now()
		w.must("revoke", c.name)
		a.sees(b)
		b.sees(a)
		t.Logf("revoked: out after %v", time.Since(at))
		select {
		case err := <-s.ended:
			t.Fatalf("a and b lost each other: %v", err)
		default:
		}
		s.end(t)
		vnictest.Eventually(t, "the list of revoked certificates", func() error {
			_, err := os.Stat(filepath.Join(a.keys, "ca.crl"))
			return err
		})
		b.p.Stop(vnictest.Limit)
		b.p = nil
		vnictest.Eventually(t, "b has left", func() error {
			if out := w.must("hosts"); strings.Count(out, "here") != 1 || strings.Count(out, "away") != 1 {
				return errors.New(out)
			}
			return nil
		})
	})
}

// TestAFunctionMovesWhileItIsUsed: a function goes from one host to another and back; a TCP connection
// with it lives on. What the other host cannot do is said, and the function stays where it is.
func TestAFunctionMovesWhileItIsUsed(t *testing.T) {
	inFleet(t, 3, func(w *hostsOf) {
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		// The guest of a's function is reached from both hosts, as a virtual machine is that has moved.
		a.roams(b)
		w.start()
		c.owns()
		a.echo()
		s := c.talks(a)
		w.fails(b.name+": there is no function h1.pf0.vf99; VFs of pf0 go up to 4", "move", a.name+"/pf0.vf1", b.name, "--as", "pf0.vf99")
		w.fails(`bridge "nowhere" does not exist`, "move", a.name+"/pf0.vf1", b.name, "--as", "pf0.vf2", "--set", "port=name=port2,mode=bridged,bridge=nowhere")
		places := []string{a.name + "/pf0.vf1", b.name + "/pf0.vf2"}
		for i := range 4 {
			from, to := places[i%2], places[(i+1)%2]
			host, function, _ := strings.Cut(to, "/")
			outage := c.probes(a)
			if out := w.must("move", from, host, "--as", function, "--wait", vnictest.Limit.String(), "--set", fmt.Sprintf("port=name=port%d,mode=bridged,bridge=gbr", 1+(i+1)%2)); !strings.Contains(out, "to "+to) {
				t.Error(out)
			}
			vnictest.Eventually(t, "the function at "+to, func() error {
				if out := w.must("functions"); !strings.Contains(out, a.address()) || strings.Contains(out, from) {
					return errors.New(out)
				}
				return nil
			})
			s.goesOn(t)
			t.Logf("outage: %v", outage())
		}
		s.end(t)
		t.Logf("longest pause of the connection: %v", s.worst)
		for _, h := range w.hosts {
			if d := h.status(); len(d.Problems) != 0 {
				t.Errorf("%s: %v", h.name, d.Problems)
			}
		}
	})
}

// TestLongCertificatesAreRenewedAtHalfTheirLife: a NIC whose certificate is good for seconds has links and its
// place in the fleet for longer than that.
func TestLongCertificatesAreRenewedAtHalfTheirLife(t *testing.T) {
	const life = time.Minute // the first NIC has to run, and to renew, before it is over
	inFleetOf(t, 1, 2, life, func(w *hostsOf) {
		began := time.Now()
		w.start()
		for _, h := range w.hosts {
			vnictest.Eventually(t, "a renewed certificate", func() error {
				if n, err := h.client().Counters(context.Background()); err != nil || int64(n["cmlink.certificate_ends"]) < began.Add(2*life).Unix() {
					return fmt.Errorf("%d, %v", n["cmlink.certificate_ends"], err)
				}
				return nil
			})
		}
		w.meet()
		for _, h := range w.hosts {
			vnictest.Eventually(t, "its place in the fleet", func() error {
				if d := h.status(); !d.Watching || d.Keeping != "" || len(d.Problems) != 0 {
					return fmt.Errorf("%+v", d)
				}
				return nil
			})
		}
	})
}

// TestLongTheAuthorityIsReplacedUnderTraffic: the authority of a fleet is replaced by vnic fleet authority
// while a TCP stream goes on. What is not ready for a step is named; a host that is left behind is refused,
// is told why, and joins anew.
func TestLongTheAuthorityIsReplacedUnderTraffic(t *testing.T) {
	requireEtcdctl(t)
	inFleet(t, 3, func(w *hostsOf) {
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		w.start()
		for _, h := range w.hosts {
			h.owns()
		}
		b.echo()
		s := a.talks(b)
		command := func(args ...string) {
			t.Helper()
			vnictest.Eventually(t, strings.Join(args, " "), func() error {
				_, err := w.world.run(args...)
				return err
			})
		}
		restart := func() { w.member.Kill(); w.member.Start() }

		w.joins("gone")
		w.must("revoke", "gone")
		w.fails("one authority, which signs", "authority", "switch")
		w.must("authority", "next")
		w.fails("one is being replaced already", "authority", "next")
		vnictest.Eventually(t, "etcd that has to be started again", func() error {
			_, err := w.world.run("authority", "switch")
			if err == nil || !strings.Contains(err.Error(), "give it the new ca.pem and start it again") {
				return err
			}
			return nil
		})
		// The others forget a host without a record after directory.KeepGone, and nothing here is bound to a
		// time: so its record stays.
		record := directory.HostKey(w.is.Prefix, c.name)
		said := strings.TrimSpace(string(w.etcdctl("get", record, "--print-value-only")))
		c.p.Stop(vnictest.Limit)
		c.p = nil
		w.etcdctl("put", record, said)
		restart()
		vnictest.Eventually(t, "a host that is away", func() error {
			_, err := w.world.run("authority", "switch")
			if err == nil || !strings.Contains(err.Error(), c.name+": it does not trust the next authority yet") {
				return err
			}
			return nil
		})
		command("authority", "switch", "--without", c.name)
		revoked := func() bool {
			key := "revoked/"
			return strings.Contains(string(w.etcdctl("get", directory.Aside(w.is.Prefix)+key, "--prefix", "--keys-only")), key)
		}
		if !revoked() {
			t.Error("what is revoked is forgotten while its authority is trusted")
		}
		command("authority", "drop", "--without", c.name) // when both have other certificates
		if revoked() {
			t.Error("what a dropped authority signed is still revoked")
		}
		restart()
		for _, h := range []*hostNIC{a, b} {
			vnictest.Eventually(t, h.name+" trusts the new authority alone", func() error {
				is, err := cmlink.Load(h.keys, h.name)
				if err != nil {
					return err
				}
				if d := h.status(); len(is.Authorities()) != 1 || !d.Watching || d.Keeping != "" || len(d.Problems) > 0 {
					return fmt.Errorf("%v, %+v", is.Authorities(), d)
				}
				return nil
			})
		}
		c.start()
		vnictest.Eventually(t, "etcd's refusal of the old certificate", func() error {
			if d := c.status(); d.Watching || !strings.Contains(d.Reading, "of another authority") {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
		vnictest.Eventually(t, "a NIC's refusal of the old certificate", func() error {
			out, _, _ := vnictest.Run(t, "peer", "list", "-s", a.control)
			if !strings.Contains(out, "its certificate is of another authority") || !strings.Contains(out, "one of the two has the old files") {
				return errors.New(out)
			}
			return nil
		})
		c.p.Stop(vnictest.Limit)
		c.keys = w.joins(c.name)
		c.configure(c.port())
		c.start()
		w.meet()
		s.end(t)
		t.Logf("longest pause of the connection: %v", s.worst)
	})
}

// cut cuts the namespace of a cable off, or joins it again.
func (w *hostsOf) cut(name string, off bool) {
	w.t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil && off {
		err = netlink.LinkSetDown(l)
	} else if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestLongEightNICsAndThreeMembers: while NICs carry traffic and a function moves to and fro, one member of
// etcd is killed, and one is cut off: with two of three the fleet goes on, with one what is there goes on.
func TestLongEightNICsAndThreeMembers(t *testing.T) {
	inFleetOf(t, 3, 8, hostLife, func(w *hostsOf) {
		first := w.hosts[0]
		first.roams(w.hosts[1])
		w.start()
		first.echo()
		for _, h := range w.hosts[1:] {
			h.owns()
		}
		var streams []*stream
		for i, h := range w.hosts[2:] {
			to := first
			if i%2 == 1 {
				to = w.hosts[i+1]
				if to.echoes == nil {
					to.echo()
				}
			}
			streams = append(streams, h.talks(to))
		}
		at := 1 // the function is at host 1 or 2
		move := func() {
			t.Helper()
			to := 3 - at
			from := fmt.Sprintf("1:%s", first.address())
			vnictest.Eventually(t, "a move", func() error {
				_, err := w.world.run("move", from, w.hosts[to-1].name, "--as", fmt.Sprintf("pf0.vf%d", to), "--set", fmt.Sprintf("port=name=port%d,mode=bridged,bridge=gbr", to))
				return err
			})
			at = to
			vnictest.Eventually(t, "the function at its new place", func() error {
				out, err := w.world.run("functions")
				if err == nil && !strings.Contains(strings.Join(strings.Fields(out), " "), first.address()+" "+w.hosts[at-1].name) {
					err = errors.New(out)
				}
				return err
			})
		}
		goesOn := func() {
			t.Helper()
			for _, s := range streams {
				s.goesOn(t)
			}
		}
		move()
		goesOn()
		w.members[1].Kill()
		move()
		goesOn()
		w.cut("m3", true) // there is no majority: nothing changes, and all goes on
		goesOn()
		time.Sleep(2 * directory.LeaseTTL)
		goesOn()
		w.fails("etcd is not reached", "move", "1:"+first.address(), w.hosts[2].name, "--as", "pf0.vf3")
		w.cut("m3", false)
		move()
		goesOn()
		move() // host 1 has a function again, so all are peers
		goesOn()
		w.meet()
		for _, h := range w.hosts {
			vnictest.Eventually(t, h.name+" watches", func() error {
				if d := h.status(); !d.Watching || d.Keeping != "" || d.Hosts != 8 {
					return fmt.Errorf("%+v", d)
				}
				return nil
			})
		}
		for _, s := range streams {
			s.end(t)
		}
	})
}

// roams puts the guest of a host on a bridge that the host and another one share, each by a bridge gbr:
// functions of both reach it. The host's function gets a port there; it has not started yet.
func (h *hostNIC) roams(other *hostNIC) {
	h.t.Helper()
	mac, err := net.ParseMAC(h.mac())
	if err != nil {
		h.t.Fatal(err)
	}
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "g0", MTU: 1400}, PeerName: "eth0", PeerMTU: 1400, PeerHardwareAddr: mac}
	err = errors.Join(tap.NewBridge("guests", 1400), netns.Up("guests"), netlink.LinkAdd(v), labkit.Plug("g0", "guests"), netns.Up("g0"), h.guest.Take("eth0", h.address()+"/24"))
	for _, at := range []*hostNIC{h, other} {
		name := fmt.Sprint("g", at.i+1)
		err = errors.Join(err, labkit.Veth(name, name+"e", 1400), labkit.Plug(name, "guests"), netns.Up(name), at.in.Take(name+"e"),
			at.in.Do(func() error {
				return errors.Join(tap.NewBridge("gbr", 1400), netns.Up("gbr"), labkit.Plug(name+"e", "gbr"))
			}))
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.configure("port: {name: port1, mode: bridged, bridge: gbr}")
}

// opens attaches a client to a function of the host, as its guest.
func (h *hostNIC) opens(function string) *setup.Side {
	h.t.Helper()
	var s *setup.Side
	vnictest.Eventually(h.t, h.name+"/"+function, func() (err error) {
		s, err = setup.Open(h.world.ctx(), fmt.Sprintf("unix://%s/%d.sock?function=%s", h.run, h.i+1, function), 4096)
		return err
	})
	h.t.Cleanup(func() { _ = s.Dev.Close() })
	return s
}

// event waits for an event of a device.
func event(t *testing.T, d *guestlib.Device, what abi.EventType) guestlib.Event {
	t.Helper()
	late := time.After(vnictest.Limit)
	for {
		select {
		case e := <-d.Events():
			if e.Type == what {
				return e
			}
		case <-late:
			t.Fatalf("no event %v", what)
		}
	}
}

// TestLongRDMAConnectsAgainAfterAMove: when a function moves, its RDMA connections end at once at both ends,
// and a program that connects again to the same address reaches the function at its new place.
func TestLongRDMAConnectsAgainAfterAMove(t *testing.T) {
	inFleet(t, 3, func(w *hostsOf) {
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		w.start()
		const service = 7
		gid, err := guestlib.ParseGID(a.address())
		if err != nil {
			t.Fatal(err)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		client := c.opens("pf0.vf1")
		// talk has a client of the function that has a's address write to a server there, which runs at a host.
		talk := func(server *setup.Side, text string) *guestlib.QP {
			t.Helper()
			l, err := server.Dev.Listen(w.ctx(), service)
			must(err)
			own, err := server.QP(w.ctx())
			must(err)
			accepted := make(chan error, 1)
			go func() { accepted <- server.Accept(w.ctx(), l, own) }()
			qp, err := client.QP(w.ctx())
			must(err)
			r, err := client.Connect(w.ctx(), qp, gid, service)
			must(err)
			must(<-accepted)
			n := copy(client.MR.Bytes(), text)
			must(client.Do(w.ctx(), qp, &guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{client.MR.SGE(0, n)}, RemoteAddr: r.Addr, RKey: r.RKey}))
			if got := string(server.MR.Bytes()[:n]); got != text {
				t.Errorf("%q was written, want %q", got, text)
			}
			return qp
		}
		server := a.opens("pf0.vf1")
		qp := talk(server, "here")
		w.must("move", a.name+"/pf0.vf1", b.name, "--as", "pf0.vf2", "--wait", vnictest.Limit.String(), "--set", "guest=unix:guest")
		if e := event(t, client.Dev, abi.EventDisconnected); e.QP != qp {
			t.Errorf("%+v", e)
		}
		event(t, server.Dev, abi.EventFunctionState)
		talk(b.opens("pf0.vf2"), "there")
		for _, h := range w.hosts {
			if d := h.status(); len(d.Problems) != 0 {
				t.Errorf("%s: %v", h.name, d.Problems)
			}
		}
	})
}

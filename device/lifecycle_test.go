package device

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// descriptors counts the open file descriptors of the process.
func descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// TestStopWithGuests checks that a NIC that stops while guests work leaves no descriptor and
// (TestMain) no goroutine, and can be started again at once.
func TestStopWithGuests(t *testing.T) {
	w := newWorld(t) // after this, descriptors that the runtime opens once are open
	for i := range w.stop {
		if err := w.stop[i](); err != nil {
			t.Fatal(err)
		}
	}
	before := descriptors(t)
	for range 3 {
		w := newWorld(t)
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, a, b, 1)
		for range 4 {
			if err := a.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range w.stop {
			if err := w.stop[i](); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range []*endpoint{a, b} {
			<-e.dev.Done()
			if err := e.dev.Close(); err != nil && !errors.Is(err, guestlib.ErrClosed) {
				t.Log(err)
			}
		}
	}
	w.until("descriptors closed", func() bool { return descriptors(t) <= before })
}

// TestTheAPIDescribesAWorkingPair calls the API of a working pair through its sockets.
func TestTheAPIDescribesAWorkingPair(t *testing.T) {
	useShards(t, 2)
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 5000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	ctx := testContext(t)
	c := control.NewClient(w.nics[0].cfg.Control)
	n, err := c.NIC(ctx)
	if err != nil || n.Host != 1 || len(n.Uplinks) != 1 || n.Uplinks[0].Addr != "10.99.0.1/24" || len(n.Peers) != 1 || !n.Peers[0].Up || n.Peers[0].Connections != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	fs, err := c.Functions(ctx)
	if err != nil || len(fs) != 5 || fs[0].ID != "h1.pf0" || fs[0].State != abi.StateDisabled.String() ||
		fs[1].ID != "h1.pf0.vf1" || fs[1].State != abi.StateReady.String() || fs[1].QPs != 1 || fs[1].MRs != 1 || fs[1].Attached != "unix" || fs[1].Addr != "192.168.100.11" {
		t.Errorf("%+v, %v", fs, err)
	}
	cs, err := c.Connections(ctx)
	if err != nil || len(cs) != 1 || cs[0].State != "ESTABLISHED" || cs[0].Function != "h1.pf0.vf1" || cs[0].PeerFunction != "h2.pf0.vf1" || cs[0].QPN != a.qp.Num() || cs[0].PeerQPN != b.qp.Num() {
		t.Errorf("%+v, %v", cs, err)
	}
	k, err := c.Counters(ctx)
	if err != nil || k["shard.tx_packets"] == 0 || k["falcon.packets_sent"] == 0 || k["rdma.posted"] != 1 || k["uplink.tx_frames"] == 0 || k["cm.established"] != 1 {
		t.Errorf("%+v, %v", k, err)
	}
}

// TestSealedFramesShowOnlyTheNICsAddresses checks that frames are written sealed and clear; the clear ones show the functions'
// addresses, the sealed ones only the NICs'.
func TestSealedFramesShowOnlyTheNICsAddresses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.pcapng")
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
		if i == 0 {
			c.Capture = &config.Capture{File: file, Mode: config.CaptureBoth}
		}
	})
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 50000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	if err := w.stop[0](); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	var seen [2]int
	for {
		b, ci, err := r.ReadPacketData()
		if err != nil {
			break
		}
		switch ci.InterfaceIndex {
		case capture.Sealed:
			p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy)
			if ip, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok && !strings.HasPrefix(ip.SrcIP.String(), "10.99.0.") {
				t.Errorf("sealed frame from %s", ip.SrcIP)
			}
		case capture.Clear:
			p := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.NoCopy)
			if ip, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4); !ok || !strings.HasPrefix(ip.SrcIP.String(), "192.168.100.") || ip.Protocol != 252 {
				t.Errorf("clear packet %v", p)
			}
		}
		seen[ci.InterfaceIndex]++
	}
	if seen[capture.Sealed] < 13 || seen[capture.Clear] < 13 {
		t.Errorf("captured %d sealed and %d clear", seen[capture.Sealed], seen[capture.Clear])
	}
}

// slowUplink takes few frames at a time and sometimes none.
type slowUplink struct {
	tap.Uplink
	calls int
}

func (p *slowUplink) Write(frames [][]byte, more bool) (int, error) {
	p.calls++
	if p.calls%3 == 0 {
		return 0, nil
	}
	return p.Uplink.Write(frames[:min(len(frames), 2)], more)
}

// TestASlowUplinkLosesNothing checks that an uplink that takes little at a time slows the NIC down and loses
// nothing.
func TestASlowUplinkLosesNothing(t *testing.T) {
	sw := fabric.New(devicetest.MTU)
	w := newWorldOn(t, func(name string) (tap.Uplink, error) {
		p, err := sw.Port(name)
		return &slowUplink{Uplink: p}, err
	})
	testOperations(t, w)
	if n := w.counter(0, "falcon.resyncs_sent"); n != 0 {
		t.Errorf("%d resyncs", n)
	}
}

// closer records that it was closed.
type closer struct {
	queues.Attachment
	closed int
}

func (c *closer) Close() error { c.closed++; return nil }
func (c *closer) Addr() string { return "test" }

func TestNewNICFails(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	small, err := fabric.New(1500).Port("small")
	if err != nil {
		t.Fatal(err)
	}
	a := &closer{}
	c, err := capture.New(io.Discard, config.CaptureBoth) // leak.Main does not notice if it stays open
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewNIC(cfg, Deps{Uplink: small, Attachments: []Attachment{{Attachment: a}}, Capture: c}); err == nil || !strings.Contains(err.Error(), "unused") {
		t.Fatalf("without identity: %v", err)
	}
	if a.closed != 1 {
		t.Errorf("attachment closed %d times", a.closed)
	}
	if err := small.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("uplink was left open: %v", err)
	}
	cfg.Peers = nil
	if small, err = fabric.New(1500).Port("small"); err != nil {
		t.Fatal(err)
	}
	if _, err := NewNIC(cfg, Deps{Uplink: small}); err == nil || !strings.Contains(err.Error(), "1500") {
		t.Errorf("small uplink: %v", err)
	}
	if _, err := NewNIC(cfg, Deps{}); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("memory uplink that nobody gave: %v", err)
	}
}

// runAlone runs a NIC without peers until stop, which the test has to call.
func runAlone(t *testing.T, change func(c *config.Config)) (n *NIC, stop func()) {
	t.Helper()
	return runAloneWith(t, change, Deps{})
}

func runAloneWith(t *testing.T, change func(c *config.Config), deps Deps) (n *NIC, stop func()) {
	t.Helper()
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.Peers, cfg.Control = nil, ""
	change(cfg)
	port, err := fabric.New(devicetest.MTU).Port("alone")
	if err != nil {
		t.Fatal(err)
	}
	deps.Uplink = port
	if n, err = NewNIC(cfg, deps); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { err = n.Run(ctx) })
	<-n.Ready()
	return n, func() {
		t.Helper()
		cancel()
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRunWithoutPeers checks that a NIC without peers starts and stops.
func TestRunWithoutPeers(t *testing.T) {
	n, stop := runAlone(t, func(*config.Config) {})
	stop()
	if _, err := n.Functions(context.Background()); !errors.Is(err, inbox.ErrStopped) {
		t.Errorf("asked after its end: %v", err)
	}
}

// stuckDisk accepts writes only while a test lets it.
type stuckDisk struct{ sync.Mutex }

func (d *stuckDisk) Write(b []byte) (int, error) {
	d.Lock()
	defer d.Unlock()
	return len(b), nil
}

// TestCountersOfAll checks the NIC's counters of its configured capture and its supervisor, if it
// has them, and of its warnings.
func TestCountersOfAll(t *testing.T) {
	n, stop := runAlone(t, func(*config.Config) {})
	got, err := n.Counters(t.Context())
	must(t, err)
	for _, name := range []string{"capture.dropped", "worker.starts", "worker.stuck"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is %d, of nothing", name, v)
		}
	}
	if n := got["nic.warnings"]; n != 0 {
		t.Errorf("%d warnings", n)
	}
	stop()

	var disk stuckDisk
	c, err := capture.New(&disk, config.CaptureBoth)
	must(t, err)
	n, stop = runAloneWith(t, func(c *config.Config) {
		c.PSP.KeyLog = filepath.Join(t.TempDir(), "none", "keys")
	}, Deps{Capture: c, Supervisor: &controller.Supervisor{Starts: 3, Stuck: 2}})
	disk.Lock()
	for c.Drops() == 0 {
		c.Packet(capture.Sealed, capture.In, 1, []byte("a frame"), "")
	}
	got, err = n.Counters(t.Context())
	must(t, err)
	disk.Unlock()
	for name, want := range map[string]uint64{"capture.dropped": c.Drops(), "worker.starts": 3, "worker.stuck": 2, "nic.warnings": 1} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
	stop()
}

// askedForGuests records that Accept was called on an attachment.
type askedForGuests struct {
	queues.Attachment
	was atomic.Bool
}

func (a *askedForGuests) Accept() (queues.Session, error) {
	a.was.Store(true)
	return a.Attachment.Accept()
}

// servedPort records that its guest is served.
type servedPort struct {
	stubbornPort
	was atomic.Bool
}

func (p *servedPort) OpenPort(*config.Port, func(func()) bool) (ports.Device, error) { return p, nil }

func (p *servedPort) Serve() { p.was.Store(true) }

// TestBeginsBeforeItAnswers checks that Deps.Begin has returned before the NIC answers for the
// first time, on its control socket and to guests of streams and of ports. A worker drops rights in
// Begin and reports that it is ready.
func TestBeginsBeforeItAnswers(t *testing.T) {
	dir := t.TempDir()
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.Peers, cfg.Control = nil, filepath.Join(dir, "ctl")
	port, err := fabric.New(devicetest.MTU).Port("alone")
	if err != nil {
		t.Fatal(err)
	}
	bare, err := qemu.ListenUnix(filepath.Join(dir, "guests"), nil)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(t, err)
	eth := &servedPort{stubbornPort: stubbornPort{fd: fd}}
	cfg.Functions[0].VFs[0].Port = &config.Port{Type: config.PortVhostUser, Mode: config.PortDirect, MTU: 1500, Assign: new(bool)}
	client, guests := control.NewClient(cfg.Control), &askedForGuests{Attachment: bare}
	began := false
	n, err := NewNIC(cfg, Deps{Uplink: port, Guests: eth, Attachments: []Attachment{{Name: "bare", Attachment: guests}}, Begin: func() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := client.NIC(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("asked before the NIC begins: %v", err)
		}
		began = true
		if guests.was.Load() || eth.was.Load() {
			t.Error("guests are let in before the NIC begins")
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-n.Ready()
	if _, err := client.NIC(ctx); err != nil || !began || !eth.was.Load() {
		t.Errorf("it has begun: %v, its port is served: %v; %v", began, eth.was.Load(), err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

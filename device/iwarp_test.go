package device

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/conform"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wiretest"
)

// iwarpWorld runs f with two NICs whose functions use iWARP.
func iwarpWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	iwarpWorldWith(t, func(int, *config.Config) {}, f)
}

// iwarpWorldWith is iwarpWorld with a changed configuration.
func iwarpWorldWith(t *testing.T, change func(i int, c *config.Config), f func(w *world)) {
	t.Helper()
	netns.Run(t, func() {
		f(newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
			c.RDMA.Transport = config.TransportIWARP
			devicetest.AddPort(c, 0, &config.Port{Name: fmt.Sprintf("vp%d", i+1)})
			change(i, c)
		}))
	})
}

// TestConnectionsOfListenAndConnectGoOverIWARP: with rdma.transport iwarp, clients of two NICs connect by
// listen and connect with private data, and write, send and read each other's memory over iWARP, sealed
// between the NICs. Falcon carries nothing.
func TestConnectionsOfListenAndConnectGoOverIWARP(t *testing.T) {
	iwarpWorld(t, func(w *world) {
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, a, b, 5000)
		const size = 1 << 20
		for i := range size {
			a.mr.Bytes()[i] = byte(i * 7)
			b.mr.Bytes()[2<<20+i] = byte(i * 13)
		}
		// A WRITE is done when TCP has it acknowledged; it is in memory when the READ behind it is done
		// (RFC 5040 §5.5).
		a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		a.do(t, guestlib.SendWR{Opcode: guestlib.Read, SGL: []guestlib.SGE{a.mr.SGE(1<<20, size)}, RemoteAddr: b.mr.Addr() + 2<<20, RKey: b.mr.RKey()})
		if !bytes.Equal(a.mr.Bytes()[1<<20:2<<20], b.mr.Bytes()[2<<20:3<<20]) {
			t.Error("other bytes were read")
		}
		if !bytes.Equal(b.mr.Bytes()[:size], a.mr.Bytes()[:size]) {
			t.Error("other bytes were written")
		}
		for name, n := range map[string]uint64{"iwarp.sent": w.counter(0, "iwarp.sent"), "iwarp.received": w.counter(1, "iwarp.received")} {
			if n < size/9000 {
				t.Errorf("%s: %d", name, n)
			}
		}
		if n := w.counter(0, "rdma.pushes_tx"); n == 0 || w.counter(0, "falcon.packets_sent") != 0 {
			t.Errorf("%d pushes; Falcon sent %d packets", n, w.counter(0, "falcon.packets_sent"))
		}
		if err := a.qp.Disconnect(testContext(t)); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-b.dev.Events():
			if e.QP != b.qp {
				t.Errorf("%+v", e)
			}
		case <-time.After(testTime):
			t.Error("the peer does not hear of the end")
		}
	})
}

// TestWiresharkReadsACaptureOfIWARP: in a NIC's capture, tshark finds each message of a connection, the checksum of
// each right, and no packet malformed.
func TestWiresharkReadsACaptureOfIWARP(t *testing.T) {
	file := filepath.Join(t.TempDir(), "iwarp.pcapng")
	iwarpWorldWith(t, func(i int, c *config.Config) {
		if i == 0 {
			c.Capture = &config.Capture{File: file, Mode: config.CaptureClear}
		}
	}, func(w *world) {
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, a, b, 18515) // tshark takes some ports for another protocol's
		for range 2 {
			must(t, b.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{b.mr.SGE(1<<20, 1<<20)}}))
		}
		for _, op := range []guestlib.Opcode{guestlib.Write, guestlib.Send, guestlib.WriteImm, guestlib.Read, guestlib.FetchAdd} {
			n := 20_000
			if op == guestlib.FetchAdd {
				n = 8
			}
			a.do(t, guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		must(t, w.stop[0]())
	})
	said := wiretest.Read(t, file, "-O", "iwarp_mpa,iwarp_ddp_rdmap")
	for _, op := range []wire.Opcode{wire.OpWrite, wire.OpReadRequest, wire.OpReadResponse, wire.OpSend, wire.OpImmediate, wire.OpAtomicRequest, wire.OpAtomicResponse} {
		if !regexp.MustCompile(fmt.Sprintf(`OpCode: [A-Za-z ]+ \(%#x\)`, uint8(op))).MatchString(said) {
			t.Errorf("no %v", op)
		}
	}
	good, bad, malformed := strings.Count(said, "(Good CRC32)"), strings.Count(said, "(Bad CRC32"), strings.Count(said, "Malformed")
	if good < 4*20_000/9000 || bad+malformed > 0 {
		t.Errorf("%d checksums are right, %d wrong; %d packets malformed", good, bad, malformed)
	}
}

// TestACallOverIWARPMayBeRejected: a listener rejects a call with private data, and then accepts one of
// the same queue pair. Two services cannot be the same TCP port.
func TestACallOverIWARPMayBeRejected(t *testing.T) {
	iwarpWorld(t, func(w *world) {
		ctx := testContext(t)
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		l, err := b.dev.Listen(ctx, 5000)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.dev.Listen(ctx, 0x106<<16|5000); err == nil {
			t.Error("two listeners at TCP port 5000")
		}
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				_ = r.Reject(ctx, 7, []byte("not today"))
			}
		}()
		_, err = a.dev.Connect(ctx, a.qp, b.dev.GID(), 5000, []byte("please"))
		var rejected *guestlib.RejectedError
		if !errors.As(err, &rejected) || string(rejected.Private) != "not today" {
			t.Errorf("%v", err)
		}
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
		connect(t, a, b, 5000)
	})
}

// TestRDMACRCSaysWhetherIWARPHasChecksums: the answer to a peer that wants no checksums has them, unless
// rdma.crc is false. A peer that asks for them gets them.
func TestRDMACRCSaysWhetherIWARPHasChecksums(t *testing.T) {
	for _, is := range []struct{ configured, asked, want bool }{{true, false, true}, {false, false, false}, {false, true, true}} {
		onPorts(t, func(_ int, c *config.Config) {
			c.RDMA.Transport, c.RDMA.CRC = config.TransportIWARP, &is.configured
		}, func(w *world, _, host *namespace) {
			a := newEndpoint(t, w.open(0, "pf0.vf1"))
			l, err := a.dev.Listen(testContext(t), hostilePort)
			must(t, err)
			go func() {
				if r, err := l.Accept(testContext(t)); err == nil {
					_ = r.Accept(testContext(t), a.qp, nil)
				}
			}()
			var reply wire.Frame
			host.in(func() {
				reply, err = askOverIWARP(wire.Frame{CRC: is.asked, Revision: wire.Revision2, HasEnhanced: true, Enhanced: wire.Enhanced{IRD: 4, ORD: 4}})
			})
			if err != nil || reply.Reject || reply.CRC != is.want {
				t.Errorf("%+v: %+v, %v", is, reply, err)
			}
		})
	}
}

// askOverIWARP sends the target's listener a request from a socket of Linux, and returns the answer.
func askOverIWARP(request wire.Frame) (reply wire.Frame, err error) {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", targetAddr, hostilePort), testTime)
	if err != nil {
		return reply, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testTime))
	if _, err := c.Write(request.Append(nil)); err != nil {
		return reply, err
	}
	b := make([]byte, wire.MaxFrameLen)
	n, err := c.Read(b)
	if err != nil {
		return reply, err
	}
	reply, _, err = wire.ParseFrame(b[:n], true)
	return reply, err
}

// TestIWARPInsideANICEndsWithADriver: functions of one NIC, of one shard or of two, reach each other over
// iWARP, too; when the driver of one goes, the other hears of it.
func TestIWARPInsideANICEndsWithADriver(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d shards", n), func(t *testing.T) {
			useShards(t, n)
			netns.Run(t, func() {
				w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
					c.RDMA.Transport = config.TransportIWARP
					for vf := range 2 {
						devicetest.AddPort(c, vf, &config.Port{Name: fmt.Sprintf("vp%d%d", i+1, vf+1)})
					}
				})
				a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(0, "pf0.vf2"))
				connect(t, a, b, 5000)
				copy(a.mr.Bytes(), "written inside")
				a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 20_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
				a.do(t, guestlib.SendWR{Opcode: guestlib.Read, SGL: []guestlib.SGE{a.mr.SGE(1<<20, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}) // the WRITE is in memory then
				if !bytes.HasPrefix(b.mr.Bytes(), []byte("written inside")) {
					t.Errorf("%q", b.mr.Bytes()[:20])
				}
				a.dev.Close()
				select {
				case e := <-b.dev.Events():
					if e.QP != b.qp {
						t.Errorf("%+v", e)
					}
				case <-time.After(testTime):
					t.Error("the peer does not hear of the end")
				}
			})
		})
	}
}

// TestConformanceOverIWARP: the conformance kit's checks of iWARP (DEV-970, DEV-971, DEV-972, DEV-973)
// pass, and other functions do not offer it.
func TestConformanceOverIWARP(t *testing.T) {
	run := func(w *world) map[conform.Outcome]int {
		r, err := conform.Run(t.Context(), conform.Config{URL: "unix://" + w.sockets[0] + "?function=pf0.vf1", Match: regexp.MustCompile(`^iwarp\.`)})
		must(t, err)
		n := map[conform.Outcome]int{}
		for _, x := range r.Results {
			if n[x.Outcome]++; x.Outcome == conform.Failed {
				t.Errorf("%s: %s", x.Name, x.Detail)
			}
		}
		return n
	}
	iwarpWorld(t, func(w *world) {
		if n := run(w); n[conform.Passed] == 0 || n[conform.Skipped] != 0 {
			t.Errorf("%v", n)
		}
	})
	if n := run(newWorld(t)); n[conform.Passed] != 0 || n[conform.Skipped] == 0 {
		t.Errorf("a function without iWARP: %v", n)
	}
}

// TestOverIWARPThereAreOnlyReliableConnections: a function that uses iWARP refuses queue pairs of other types
// when they are created, and says that it uses iWARP.
func TestOverIWARPThereAreOnlyReliableConnections(t *testing.T) {
	iwarpWorld(t, func(w *world) {
		ctx, a := testContext(t), newEndpoint(t, w.open(0, "pf0.vf1"))
		for _, typ := range []guestlib.QPType{guestlib.UD, guestlib.UC, guestlib.XRCSend} {
			if _, err := a.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: a.cq, Type: typ}); !errors.Is(err, guestlib.ErrUnsupported) {
				t.Errorf("%s: %v", typ, err)
			}
		}
		domain, err := a.dev.OpenXRCD(ctx)
		must(t, err)
		if _, err := domain.CreateQP(ctx, guestlib.QPConfig{}); !errors.Is(err, guestlib.ErrUnsupported) {
			t.Errorf("XRC: %v", err)
		}
		list, err := w.nics[0].Functions(ctx)
		must(t, err)
		for _, f := range list {
			if f.RDMA != config.TransportIWARP {
				t.Errorf("%s uses %q", f.ID, f.RDMA)
			}
		}
	})
}

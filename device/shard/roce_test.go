package shard

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// newRoCEWorld returns two shards in virtual time whose VFs 1 and 2 have ports.
func newRoCEWorld(t testing.TB, transport string, imp sim.Impairment) *virtual {
	t.Helper()
	v := newPortWorldWith(t, 5, func(i int, c *config.Config) {
		c.RDMA.Transport = transport
		c.Functions[0].VFs[0].Port.Addresses = devicetest.Addrs([]string{"192.168.100.201", "192.168.100.202"}[i])
		devicetest.AddPort(c, 1, &config.Port{Name: "vp2"})
	})
	for _, l := range v.links {
		l.Set(imp)
	}
	return v
}

// roceOf returns the RoCE port of a driver's function; nil: it has none.
func (d *driver) roceOf() *roce.Port {
	p, _ := d.fn.Verbs().Port().(*roce.Port)
	return p
}

// badWire loses, duplicates and reorders packets.
var badWire = sim.Impairment{Delay: 50_000, Jitter: 20_000, Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, ReorderDelay: 100_000}

// TestRoCECarriesDataOverABadWire moves bytes over RoCEv2 between functions of two NICs, sealed, on a wire that loses,
// duplicates and reorders, and between functions of one NIC. Falcon carries nothing.
func TestRoCECarriesDataOverABadWire(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newRoCEWorld(t, config.TransportRoCE, badWire)
		a, b := drivers(v)
		wiredPair(v, a, b, true)
		exchange(t, a, b, 50_000)
		exchange(t, b, a, 3000)
		a.noEvents()
		if s := a.roceOf().Stats(); s.Sent == 0 || s.Received == 0 || s.Wrong != 0 {
			t.Errorf("%+v", s)
		}
		for _, s := range v.all() {
			if s.counters.txPackets != 0 {
				t.Errorf("Falcon sent %d packets", s.counters.txPackets)
			}
		}
		a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
		b.send(abi.OpWrite, 0, 100, a, 0)
		if cqe := b.done(); cqe.Status != abi.WCRetryExcErr {
			t.Errorf("a WRITE to a queue pair that is gone: %s", cqe.Status)
		}
	})
}

// TestAFunctionsTransportCountsBeforeTheNICs: functions whose transport is roce exchange over RoCEv2
// on NICs with rdma.transport falcon, and functions whose transport is falcon have no port on NICs
// with roce.
func TestAFunctionsTransportCountsBeforeTheNICs(t *testing.T) {
	for _, own := range []string{config.TransportRoCE, config.TransportFalcon} {
		nic := map[string]string{config.TransportRoCE: config.TransportFalcon, config.TransportFalcon: config.TransportRoCE}[own]
		v := newPortWorldWith(t, 5, func(_ int, c *config.Config) {
			c.RDMA.Transport = nic
			for i := range c.Functions[0].VFs {
				c.Functions[0].VFs[i].Transport = own
			}
		})
		a, b := drivers(v)
		wiredPair(v, a, b, false)
		exchange(t, a, b, 5000)
		overFalcon := v.sum(0, func(s *Shard) uint64 { return s.counters.txPackets })
		if roce := a.fn.Verbs().Port() != nil; roce != (own == config.TransportRoCE) || roce != (overFalcon == 0) {
			t.Errorf("NIC %s, function %s: a port %t, %d packets over Falcon", nic, own, roce, overFalcon)
		}
	}
}

// TestRoCEDatagrams sends datagrams over RoCEv2.
func TestRoCEDatagrams(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newRoCEWorld(t, config.TransportRoCE, sim.Impairment{Delay: 50_000})
		a, b := drivers(v)
		b.createUD(a.fn.GID(), 0, 0)
		ahn := a.createUD(b.fn.GID(), 0, 0)
		copy(a.data(), "a datagram")
		b.receive(0, 4096)
		a.datagram(ahn, b.qpn, 1000)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
		cqe := b.done()
		if cqe.Status != abi.WCSuccess || cqe.ByteLen != 1040 || cqe.SrcQP != a.qpn || cqe.SL != abi.SLRoCEIPv4 {
			t.Fatalf("%+v", cqe)
		}
		if h := b.data()[:40]; h[20] != 0x45 || !bytes.HasPrefix(b.data()[40:], []byte("a datagram")) {
			t.Errorf("header and data % x", b.data()[:60])
		}
		if n := a.roceOf().Stats().Sent; n != 1 {
			t.Errorf("%d packets over RoCEv2", n)
		}
	})
}

// TestOnlyForeignHostsAreReachedOverRoCE reaches functions over Falcon and others over RoCEv2: a host behind a port that
// implements RoCEv2 itself.
func TestOnlyForeignHostsAreReachedOverRoCE(t *testing.T) {
	v := newRoCEWorld(t, config.TransportAuto, sim.Impairment{Delay: 50_000})
	a, b := drivers(v)
	wiredPair(v, a, b, false)
	exchange(t, a, b, 5000)
	if n := a.roceOf().Stats().Sent; n != 0 || v.sum(0, func(s *Shard) uint64 { return s.counters.txPackets }) == 0 {
		t.Errorf("%d packets to a function over RoCEv2", n)
	}

	addr := netip.MustParseAddr("192.168.100.202")
	host := newOutside(v, 1, addr)
	a = newDriver(v, 0, 2)
	a.setUp()
	c := host.port.Open(v.now, transport.Way{Peer: a.fn.Addr}, nil).(*roce.Conn)
	end := &outsideEnd{memory: make([]byte, 64<<10)}
	end.attach(t, c, 77, a.qpn)
	a.toRTR(77, addr.As16())
	a.toRTS()
	for i := range 20_000 {
		a.data()[i] = byte(i * 7)
	}
	a.sendTo(abi.OpWrite, 0, 20_000, 4000, 0x5a)
	host.until(func() bool { cqe, ok := a.completion(); return ok && cqe.Status == abi.WCSuccess })
	if !bytes.Equal(end.memory[4000:24_000], a.data()[:20_000]) {
		t.Error("data differs")
	}
	a.sendTo(abi.OpRead, 30_000, 10_000, 5000, 0x5a)
	host.until(func() bool { cqe, ok := a.completion(); return ok && cqe.Status == abi.WCSuccess })
	if !bytes.Equal(end.memory[5000:15_000], a.data()[30_000:40_000]) {
		t.Error("data read differs")
	}
	if s := a.roceOf().Stats(); s.Sent < 20 {
		t.Errorf("%+v", s)
	}
}

// outside is a host behind the port of a NIC's VF 1 that implements RoCEv2 itself, as Linux does.
type outside struct {
	v      *virtual
	nic    int
	engine *roce.Engine
	port   *roce.Port
	buf    [2048]byte
}

// CreditsChanged implements transport.Host.
func (h *outside) CreditsChanged() {}

func newOutside(v *virtual, nic int, addr netip.Addr) *outside {
	h := &outside{v: v, nic: nic}
	h.engine = roce.New(h)
	h.port = h.engine.NewPort(addr, 1500, nil).(*roce.Port)
	return h
}

// until runs the host and the NICs until done.
func (h *outside) until(done func() bool) {
	h.v.until("the host outside", func() bool {
		for _, f := range h.v.arrived[h.nic] {
			if f[23] == 17 && f[36] == wire.Port>>8 && f[37] == wire.Port&0xff {
				h.port.Receive(h.v.now, f[gateway.EthernetLen:])
			}
		}
		h.v.arrived[h.nic] = nil
		h.engine.Run(h.v.now)
		p := h.v.portAt(h.nic, 0)
		for n, _ := h.engine.Transmit(h.v.now, h.buf[:]); n > 0; n, _ = h.engine.Transmit(h.v.now, h.buf[:]) {
			f := make([]byte, gateway.EthernetLen+n)
			copy(f, p.Gateway[:])
			copy(f[6:], p.MAC[:])
			f[12] = 8
			copy(f[gateway.EthernetLen:], h.buf[:n])
			h.v.ports[h.nic] = append(h.v.ports[h.nic], gateway.PortInput{From: p.Endpoint, Frame: f})
		}
		h.v.step()
		return done()
	})
}

// sendTo is send to memory that belongs to no driver.
func (d *driver) sendTo(op abi.Opcode, off, n int, addr uint64, rkey uint32) {
	d.v.t.Helper()
	b := d.scratch[:1<<sqStride]
	(&abi.SendWQE{WRID: uint64(n), Opcode: op, Flags: abi.SendSignaled, NumSGE: 1, RemoteAddr: addr, RKey: rkey}).Marshal(b)
	(&abi.SGE{Addr: d.addr(pageData) + uint64(off), Length: uint32(n), LKey: d.lkey}).Marshal(b[abi.SendWQEHeader:])
	if err := d.sendQ.Push(b); err != nil {
		d.v.t.Fatal(err)
	}
	index, _, _ := d.sendQ.Publish()
	d.ring(abi.DoorbellSQ, d.qpn, index)
}

// outsideEnd is a queue pair outside, which serves requests from its memory.
type outsideEnd struct {
	transport.Requester // it makes no requests
	memory              []byte
}

func (e *outsideEnd) attach(t *testing.T, c *roce.Conn, qpn, peer uint32) {
	t.Helper()
	if _, ok := c.Attach(&transport.Terms{
		Endpoint: e, QPN: qpn, Peer: peer, PathMTU: 1024, Serves: 16, PSN: 1, Sending: &transport.Sending{PSN: 1}, Account: new(transport.Account),
	}); !ok {
		t.Fatal("not attached")
	}
}

func (e *outsideEnd) Serving() bool { return true }

func (e *outsideEnd) Heard() {}

func (e *outsideEnd) Address(uint32) bool { return false }

func (e *outsideEnd) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	if p.RKey != 0x5a || copy(e.memory[p.Addr:], data) < len(data) {
		return transport.Verdict{Refusal: transport.Access}
	}
	return transport.Verdict{}
}

func (e *outsideEnd) Complete(transport.Time, *transport.Packet, uint64, abi.WCStatus) {}

func (e *outsideEnd) Refused(transport.Time, transport.Refusal) {}

func (e *outsideEnd) Read(rkey uint32, _ uint64, _ uint32) (transport.Memory, transport.Refusal) {
	if rkey != 0x5a {
		return nil, transport.Access
	}
	return outsideMemory(e.memory), transport.Accepted
}

type outsideMemory []byte

func (m outsideMemory) Read(addr uint64, dst []byte) error {
	copy(dst, m[addr:])
	return nil
}

func (e *outsideEnd) Atomic(*transport.Atomic) (uint64, transport.Refusal) {
	return 0, transport.Invalid
}

func (e *outsideEnd) Receives() (n int, counted bool) { return 0, false }

func (e *outsideEnd) RNRTimer() uint8 { return 1 }

func (e *outsideEnd) AnswerAt(now transport.Time) transport.Time { return now }

func (e *outsideEnd) Answered(int) {}

func (e *outsideEnd) Unblocked(transport.Time) {}

func (e *outsideEnd) Ended(transport.Time, abi.WCStatus, string) {}

func (e *outsideEnd) Settle(transport.Time) {}

// overRoCE makes the functions of worlds in virtual time use RoCEv2: each has a port, and queue
// pairs that otherwise connect by the connection manager name the peer's queue pair.
var overRoCE bool

// speakRoCE configures a NIC for that.
func speakRoCE(c *config.Config) {
	c.RDMA.Transport = config.TransportRoCE
	c.Peers[0].Tenants = []uint32{7, 8}
	vfs := c.Functions[0].VFs
	for i := range vfs {
		if vfs[i].Port == nil && vfs[i].Address.IsValid() {
			vfs[i].Port = &config.Port{Name: fmt.Sprintf("rp%d", vfs[i].VF)}
		}
	}
	c.SetPortDefaults()
}

// TestEverythingAboveWorksOverRoCE runs the tests of everything above the wires again, over RoCEv2.
func TestEverythingAboveWorksOverRoCE(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"rates": TestAFunctionKeepsBelowItsRate, "link state": TestAFunctionWhoseLinkIsDownIsCutOff,
		"violations": TestEveryBrokenClauseIsRecordedOnce, "evidence": TestAViolationShowsWhatWasWrong, "evidence after a fault": TestEvidenceAfterFault,
		"receives too long": TestReceiveTooLong, "forbidden access": TestEachForbiddenAccessIsAViolation, "reserved bytes": TestAStrictNICFindsBytesThatMustBeZero,
		"drivers' faults": TestADriversFaultStopsItsOwnFunctionOnly, "queues' faults": TestAQueuesFaultStopsItsQueuePairOnly, "injected faults": TestAttackByFaults,
	} {
		t.Run(name, func(t *testing.T) {
			overRoCE = true
			t.Cleanup(func() { overRoCE = false })
			test(t)
		})
	}
}

// speaksRoCE sets overRoCE until the test ends.
func speaksRoCE(t *testing.T) {
	overRoCE = true
	t.Cleanup(func() { overRoCE = false })
}

// TestRoCECredits: two functions send over RoCEv2 through a NIC whose credits are enough for a few
// packets. Both make progress, and in the end all credits are back, of the NIC, the host and the
// functions.
func TestRoCECredits(t *testing.T) {
	speaksRoCE(t)
	v := newVirtualWith(t, 6, wire100us, func(_ int, c *config.Config) {
		c.Credits.NIC.RequestPacketTx, c.Credits.Host.RequestPacketTx = 16, 16
	})
	a, b := pair(v)
	c, d := newDriver(v, 0, 2), newDriver(v, 1, 2)
	c.setUp()
	d.setUp()
	c.connectTo(d, 5)
	ends, done := [2][2]*driver{{a, b}, {c, d}}, [2]int{}
	post := func(i int) {
		op := []abi.Opcode{abi.OpWrite, abi.OpRead}[done[i]%2]
		ends[i][0].send(op, 0, 50_000, ends[i][1], 0)
	}
	for i := range ends {
		for range 4 {
			post(i)
		}
	}
	const each = 60
	v.until("all requests", func() bool {
		for i := range ends {
			for cqe, ok := ends[i][0].completion(); ok; cqe, ok = ends[i][0].completion() {
				if cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				if done[i]++; done[i] <= each-4 {
					post(i)
				}
				if fewer := done[1-i]; done[i] == each/2 && fewer < each/8 {
					t.Errorf("function %d has done %d requests, the other %d", i, done[i], fewer)
				}
			}
		}
		return done[0] == each && done[1] == each
	})
	if waits := a.shard().Counters()["rdma.credit_waits"]; waits == 0 {
		t.Error("nobody waited for credits")
	}
	var nodes []control.CreditNode
	for _, s := range v.nics[0] {
		nodes = append(nodes, s.View().Objects.CreditRoots()...)
	}
	for _, x := range []*driver{a, c} {
		nodes = append(nodes, x.shard().View().Objects.Credits(x.fn.ID)...)
	}
	for _, n := range nodes {
		for counter, used := range n.InUse {
			if used != 0 {
				t.Errorf("%s %s: %d of %s in use at the end", n.Level, n.Name, used, counter)
			}
		}
	}
}

// TestRoCEConnections checks that connections over RoCEv2 are listed with Falcon's.
func TestRoCEConnections(t *testing.T) {
	speaksRoCE(t)
	v := newVirtual(t, 7, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 5000)
	v.idle(5e6)
	list := a.shard().View().Objects.Connections(v.now, a.fn.ID)
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	c := list[0]
	if c.Wire != "roce" || c.State != "ESTABLISHED" || c.QPN != a.qpn || c.PeerQPN != b.qpn || c.PeerAddress != b.fn.Addr.String() ||
		c.Function != a.fn.ID.String() || c.MTU != 1024 || c.Tenant != 7 || c.Cwnd == 0 || c.RTTNS < 100_000 || c.AgeMS < 5 {
		t.Errorf("%+v", c)
	}
	b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
	a.send(abi.OpWrite, 0, 100, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
		t.Fatal(cqe.Status)
	}
	v.idle(1e6)
	if list = a.shard().View().Objects.Connections(v.now, a.fn.ID); len(list) != 1 || list[0].State == "ESTABLISHED" || list[0].Retransmits == 0 {
		t.Errorf("%+v", list)
	}
	v.idle(3e9)
	if list = b.shard().View().Objects.Connections(v.now, b.fn.ID); len(list) != 0 {
		t.Errorf("of a queue pair that is gone: %+v", list)
	}
}

// TestRoCEPortComes checks that a function whose port is added while it has a driver connects its
// waiting queue pair by RoCEv2, and continues when the port is replaced.
func TestRoCEPortComes(t *testing.T) {
	speaksRoCE(t)
	v := newVirtual(t, 8, wire100us)
	a, b := newDriver(v, 0, 1), other(v)
	port := a.shard().plain.ports.get(a.fn.ID)
	ports := a.shard().Ports()
	a.shard().plain.leave(port)
	a.setUp()
	b.setUp()
	if a.roceOf() != nil {
		t.Fatal("a function without a port is in the network")
	}
	wiredPair(v, a, b, true)
	if list := b.shard().View().Objects.Connections(v.now, b.fn.ID); len(list) != 0 {
		t.Errorf("with an address that nobody has yet: %+v", list)
	}
	for range 2 {
		port = &Port{ID: a.fn.ID, Config: port.Config}
		if err := ports.Add(port, func() error { return nil }, func() {}); err != nil {
			t.Fatal(err)
		}
		v.idle(5e9)
		exchange(t, a, b, 5000)
		exchange(t, b, a, 5000)
		if s := a.roceOf().Stats(); s.Sent == 0 || s.Received == 0 {
			t.Errorf("%+v", s)
		}
		a.shard().plain.leave(port)
	}
}

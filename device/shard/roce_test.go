package shard

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
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

// roceOf returns the RoCE port of a driver's function.
func (d *driver) roceOf() *roce.Port { return d.fn.Verbs().RoCE() }

// badWire loses, duplicates and reorders packets.
var badWire = sim.Impairment{Delay: 50_000, Jitter: 20_000, Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, ReorderDelay: 100_000}

// TestRoCE moves bytes over RoCEv2 between functions of two NICs, sealed, on a wire that loses,
// duplicates and reorders, and between functions of one NIC. Falcon carries nothing.
func TestRoCE(t *testing.T) {
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

// TestTransportAuto reaches functions over Falcon and others over RoCEv2: a host behind a port that
// implements RoCEv2 itself.
func TestTransportAuto(t *testing.T) {
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
	c := host.port.Open(v.now, roce.Way{Peer: a.fn.Addr}, nil)
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

// outside is a host behind the port of a side's VF 1 that implements RoCEv2 itself, as Linux does.
type outside struct {
	v      *virtual
	side   int
	engine *roce.Engine
	port   *roce.Port
	buf    [2048]byte
}

// CreditsChanged implements transport.Host.
func (h *outside) CreditsChanged() {}

func newOutside(v *virtual, side int, addr netip.Addr) *outside {
	h := &outside{v: v, side: side}
	h.engine = roce.New(h)
	h.port = h.engine.NewPort(addr, 1500)
	return h
}

// until runs the host and the NICs until done.
func (h *outside) until(done func() bool) {
	h.v.until("the host outside", func() bool {
		for _, f := range h.v.arrived[h.side] {
			if f[23] == 17 && f[36] == wire.Port>>8 && f[37] == wire.Port&0xff {
				h.port.Receive(h.v.now, f[gateway.EthernetLen:])
			}
		}
		h.v.arrived[h.side] = nil
		h.engine.Run(h.v.now)
		p := h.v.portAt(h.side, 0)
		for n, _ := h.engine.Transmit(h.v.now, h.buf[:]); n > 0; n, _ = h.engine.Transmit(h.v.now, h.buf[:]) {
			f := make([]byte, gateway.EthernetLen+n)
			copy(f, p.Gateway[:])
			copy(f[6:], p.MAC[:])
			f[12] = 8
			copy(f[gateway.EthernetLen:], h.buf[:n])
			h.v.ports[h.side] = append(h.v.ports[h.side], gateway.PortInput{From: p.Endpoint, Frame: f})
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

func (e *outsideEnd) Serving() bool       { return true }
func (e *outsideEnd) Heard()              {}
func (e *outsideEnd) Address(uint32) bool { return false }

func (e *outsideEnd) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	if p.RKey != 0x5a || copy(e.memory[p.Addr:], data) < len(data) {
		return transport.Verdict{Refusal: transport.Access}
	}
	return transport.Verdict{}
}

func (e *outsideEnd) Complete(transport.Time, *transport.Packet, uint64, abi.WCStatus) {}
func (e *outsideEnd) Refused(transport.Time, transport.Refusal)                        {}

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

func (e *outsideEnd) RNRTimer() uint8                            { return 1 }
func (e *outsideEnd) AnswerAt(now transport.Time) transport.Time { return now }
func (e *outsideEnd) Answered(int)                               {}
func (e *outsideEnd) Unblocked(transport.Time)                   {}
func (e *outsideEnd) Ended(transport.Time, abi.WCStatus, string) {}
func (e *outsideEnd) Settle(transport.Time)                      {}

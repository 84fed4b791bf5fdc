package rdma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// gid returns the GID of the host's function, from an IPv4 address or, with v6, an IPv6 one.
func (h *host) gid() [16]byte {
	if h.w.v6 {
		return [16]byte{0xfd, 15: byte(h.fn.ID())}
	}
	return [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(h.fn.ID())}
}

// openLinks opens the links that want connections, as a device does.
func (w *world) openLinks(h *host) {
	for l := h.rof().NextLink(); l != nil; l = h.rof().NextLink() {
		from := w.hosts[l.Function()-1]
		var to *host
		for _, o := range w.hosts {
			if o.gid() == l.Key().GID {
				to = o
			}
		}
		if to == nil || w.refuse {
			l.Refused(w.now)
			continue
		}
		peer := to.fn.Links.Accept(rof.LinkKey{GID: from.gid(), TrafficClass: l.Key().TrafficClass, HopLimit: l.Key().HopLimit, Ordered: l.Key().Ordered}, l.Function())
		if peer == nil {
			l.Refused(w.now)
			continue
		}
		ca, cb := w.cid, w.cid+1
		w.cid += 2
		open := func(l *rof.Link, own, other *host, local, remote falcon.CID) {
			cfg := falcon.ConnConfig{
				LocalCID: local, RemoteCID: remote, LocalFunction: own.fn.ID(), RemoteFunction: other.fn.ID(),
				Protocol: falconwire.ProtocolRDMA, Ordered: l.Key().Ordered, MTU: w.mtu + 56, Credits: own.credits,
			}
			if own.e == other.e {
				c, err := own.local().Open(cfg)
				if err != nil {
					w.t.Fatal(err)
				}
				l.Open(w.now, own.rof().Datagrams(c), own.gid())
				return
			}
			c, err := own.fe.Open(w.now, cfg)
			if err != nil {
				w.t.Fatal(err)
			}
			l.Open(w.now, own.rof().Datagrams(c), own.gid())
		}
		open(peer, to, from, cb, ca)
		open(l, from, to, ca, cb)
	}
}

const testQKey = 0x1234

// createUD makes a datagram QP in RTS.
func (h *host) createUD(pdn uint32, c qpConfig) *qp {
	h.w.t.Helper()
	if c.typ == 0 {
		c.typ = abi.QPTypeUD
	}
	p := h.createQP(pdn, c)
	p.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTR})
	p.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS})
	return p
}

func (h *host) createAH(pdn uint32, gid [16]byte, class, hops uint8) uint32 {
	h.w.t.Helper()
	ahn, st := h.fn.CreateAH(h.w.now, &abi.CreateAH{PDN: pdn, DGID: gid, TrafficClass: class, HopLimit: hops})
	ok(h.w.t, st)
	return ahn
}

// udPair is a datagram QP per host with a region and a handle for the other.
type udPair struct {
	*world
	qps [2]*qp
	mem [2]*region
	ah  [2]uint32
	pd  [2]uint32
}

func newUDPair(t testing.TB, c worldConfig, qc qpConfig) *udPair {
	t.Helper()
	p := &udPair{world: newWorld(t, c)}
	for i, h := range p.hosts {
		var st abi.Status
		p.pd[i], st = h.fn.AllocPD()
		ok(t, st)
		p.mem[i] = h.register(p.pd[i], 1<<20, allAccess)
		p.qps[i] = h.createUD(p.pd[i], qc)
	}
	for i, h := range p.hosts {
		p.ah[i] = h.createAH(p.pd[i], p.hosts[1-i].gid(), 0x20, 9)
	}
	return p
}

// to returns a SEND from host i to the other's QP.
func (p *udPair) to(i int, op abi.Opcode) abi.SendWQE {
	return abi.SendWQE{
		Opcode: op, Flags: abi.SendSignaled, AHN: p.ah[i], RemoteQPN: p.qps[1-i].number, RemoteQKey: testQKey,
	}
}

// udBoth runs a test over Falcon and inside one NIC.
func udBoth(t *testing.T, f func(t *testing.T)) {
	t.Run("falcon", f)
	t.Run("loopback", func(t *testing.T) {
		overLoopback = true
		defer func() { overLoopback = false }()
		f(t)
	})
}

// udAll runs a test over Falcon, inside one NIC, and over RoCEv2.
func udAll(t *testing.T, f func(t *testing.T)) {
	udBoth(t, f)
	t.Run("roce", func(t *testing.T) {
		roceWorlds(t)
		f(t)
	})
}

// TestDatagram sends datagrams of all sizes, with and without immediate data, inline or gathered,
// and checks everything that the receive completion of a real NIC contains. (DEV-940, DEV-944)
func TestDatagram(t *testing.T) {
	udAll(t, func(t *testing.T) {
		for _, v6 := range []bool{false, true} {
			p := newUDPair(t, worldConfig{v6: v6}, qpConfig{})
			a, b := p.qps[0], p.qps[1]
			fill(p.mem[0].bytes(), 5)
			for i, n := range []int{0, 1, 3, 4, 100, pathMTU} {
				b.receive(uint64(i), p.mem[1].sge(0, 17), p.mem[1].sge(17, 2000))
				x := p.to(0, abi.OpSend)
				x.WRID = uint64(i)
				if i%2 == 1 {
					x.Opcode, x.Imm = abi.OpSendImm, uint32(77+i)
				}
				if i == 4 {
					a.postInline(x, p.mem[0].bytes()[:n])
				} else {
					a.post(x, p.mem[0].sge(0, n/2), p.mem[0].sge(n/2, n-n/2))
				}
				success(t, a.send.wait(1))
				got := b.recv.wait(1)[0]
				want := abi.CQE{
					WRID: uint64(i), ByteLen: uint32(40 + n), QPN: b.number, SrcQP: a.number, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: 0xa,
				}
				if v6 {
					want.SL = 9
				}
				if i%2 == 1 {
					want.Flags |= abi.WCFlagImm
					want.Imm = uint32(77 + i)
				}
				got.Timestamp, got.Tail = 0, 0
				if got != want {
					t.Fatalf("%d bytes: %+v\nwant %+v", n, got, want)
				}
				mem := p.mem[1].bytes()
				if !bytes.Equal(mem[40:40+n], p.mem[0].bytes()[:n]) {
					t.Fatalf("%d bytes: data differs", n)
				}
				length := 8 + 12 + 8 + (n+3)&^3 + 4 // what RoCE v2 would have behind the IP header
				if i%2 == 1 {
					length += 4
				}
				if at := mem[4:6]; v6 && int(binary.BigEndian.Uint16(at)) != length {
					t.Errorf("%d bytes: payload length %d, want %d", n, binary.BigEndian.Uint16(at), length)
				}
				if at := mem[22:24]; !v6 && int(binary.BigEndian.Uint16(at)) != 20+length {
					t.Errorf("%d bytes: total length %d, want %d", n, binary.BigEndian.Uint16(at), 20+length)
				}
				checkGRH(t, mem[:40], p.hosts[0].gid(), p.hosts[1].gid(), v6)
			}
			if s := p.hosts[1].fn.Stats(); s.DatagramsLost+s.BadQKeys != 0 {
				t.Fatalf("%+v", s)
			}
			if s := p.hosts[0].fn.Stats(); !overRoCE && (s.PushesTx != 6 || s.BytesTx != 0+1+3+4+100+pathMTU) {
				t.Fatalf("%d pushes of %d bytes for 6 datagrams", s.PushesTx, s.BytesTx)
			}
		}
	})
}

// checkGRH does what ibv_init_ah_from_wc does with the 40 bytes to find the sender of the datagram.
func checkGRH(t *testing.T, b []byte, src, dst [16]byte, v6 bool) {
	t.Helper()
	if v6 {
		if b[0]>>4 != 6 || b[6] != 17 || b[7] != 9 || [16]byte(b[8:]) != src || [16]byte(b[24:]) != dst || b[0]<<4|b[1]>>4 != 0x20 {
			t.Fatalf("GRH % x", b)
		}
		return
	}
	h := b[20:]
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	if sum = sum>>16 + sum&0xffff; sum != 0xffff || !bytes.Equal(b[:20], make([]byte, 20)) || h[0] != 0x45 || h[1] != 0x20 || h[8] != 9 || h[9] != 17 ||
		!bytes.Equal(h[12:16], src[12:]) || !bytes.Equal(h[16:], dst[12:]) {
		t.Fatalf("GRH % x, sum %#x", b, sum)
	}
}

// TestDatagramLost: datagrams that cannot be delivered are lost and counted, and no queue pair is
// affected. (DEV-943)
func TestDatagramLost(t *testing.T) {
	udAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		a, b := p.qps[0], p.qps[1]
		rc := p.hosts[1].createQP(p.pd[1], qpConfig{})
		for name, c := range map[string]struct {
			change func(x *abi.SendWQE)
			qkeys  uint64
		}{
			"no receive":     {change: func(*abi.SendWQE) {}},
			"no such QP":     {change: func(x *abi.SendWQE) { x.RemoteQPN = 0x777 }},
			"no GSI QP":      {change: func(x *abi.SendWQE) { x.RemoteQPN = 1 }},
			"no datagram QP": {change: func(x *abi.SendWQE) { x.RemoteQPN = rc.number }},
			"wrong Q_Key":    {func(x *abi.SendWQE) { x.RemoteQKey++ }, 1},
		} {
			before := p.hosts[1].fn.Stats()
			x := p.to(0, abi.OpSend)
			c.change(&x)
			a.post(x, p.mem[0].sge(0, 100))
			success(t, a.send.wait(1))
			p.settle(1e6)
			s := p.hosts[1].fn.Stats()
			if s.DatagramsLost-before.DatagramsLost != 1-c.qkeys || s.BadQKeys-before.BadQKeys != c.qkeys {
				t.Errorf("%s: %+v", name, s)
			}
		}
		b.receive(1, p.mem[1].sge(0, 139)) // one byte short of GRH and data
		a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
		a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 99))
		success(t, a.send.wait(2))
		if got := b.recv.wait(1)[0]; got.WRID != 1 || got.ByteLen != 139 {
			t.Errorf("the receive went to %+v", got)
		}
		if a.q.State() != abi.QPStateRTS || b.q.State() != abi.QPStateRTS {
			t.Fatalf("QPs are in %v and %v", a.q.State(), b.q.State())
		}
		p.settle(1e9)
		for i, h := range p.hosts {
			if len(h.async) != 0 || h.credits.InUse() != (credit.Cost{}) {
				t.Errorf("host %d: events %+v, credits %v", i, h.async, h.credits.InUse())
			}
		}
	})
}

// TestControlledQKey: if bit 31 is set, the QP's own Q_Key is sent, whatever the program asks for.
func TestControlledQKey(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.qps[1].receive(1, p.mem[1].sge(0, 200))
	x := p.to(0, abi.OpSend)
	x.RemoteQKey = abi.GSIQKey
	p.qps[0].post(x, p.mem[0].sge(0, 100))
	success(t, p.qps[0].send.wait(1))
	success(t, p.qps[1].recv.wait(1))
}

// TestDatagramErrors: an error in a work request itself moves the QP to SQE, where it continues to
// receive. ModifyQP brings it back. (DEV-942)
func TestDatagramErrors(t *testing.T) {
	udAll(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(p *udPair, x *abi.SendWQE)
			n      int
			want   abi.WCStatus
		}{
			"no handle":      {func(_ *udPair, x *abi.SendWQE) { x.AHN = 99 }, 10, abi.WCLocQPOpErr},
			"other PD":       {func(p *udPair, x *abi.SendWQE) { x.AHN = p.otherPD() }, 10, abi.WCLocQPOpErr},
			"WRITE":          {func(_ *udPair, x *abi.SendWQE) { x.Opcode = abi.OpWrite }, 10, abi.WCLocQPOpErr},
			"READ":           {func(_ *udPair, x *abi.SendWQE) { x.Opcode = abi.OpRead }, 10, abi.WCLocQPOpErr},
			"SEND_INV":       {func(_ *udPair, x *abi.SendWQE) { x.Opcode = abi.OpSendInv }, 10, abi.WCLocQPOpErr},
			"multicast":      {func(_ *udPair, x *abi.SendWQE) { x.RemoteQPN = 0xffffff }, 10, abi.WCLocQPOpErr},
			"25-bit QPN":     {func(_ *udPair, x *abi.SendWQE) { x.RemoteQPN |= 1 << 24 }, 10, abi.WCLocQPOpErr},
			"above MTU":      {func(*udPair, *abi.SendWQE) {}, 4097, abi.WCLocLenErr},
			"foreign memory": {func(p *udPair, _ *abi.SendWQE) { p.mem[0].key++ }, 10, abi.WCLocProtErr},
		} {
			p := newUDPair(t, worldConfig{}, qpConfig{})
			a, key := p.qps[0], p.mem[0].key
			x := p.to(0, abi.OpSend)
			x.WRID = 5
			c.change(p, &x)
			a.post(x, p.mem[0].sge(0, c.n))
			p.mem[0].key = key
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 1))
			got := a.send.wait(2)
			if got[0].Status != c.want || got[0].WRID != 5 || got[1].Status != abi.WCWRFlushErr || a.q.State() != abi.QPStateSQE {
				t.Errorf("%s: %s, QP in %v", name, describe(got), a.q.State())
				continue
			}
			a.receive(1, p.mem[0].sge(0, 200))
			p.qps[1].post(p.to(1, abi.OpSend), p.mem[1].sge(0, 100))
			success(t, a.recv.wait(1))
			a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
			p.qps[1].receive(2, p.mem[1].sge(0, 200))
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
			success(t, a.send.wait(1))
			success(t, p.qps[1].recv.wait(1))
		}
	})
}

// vector is a SEND from host i to the other's QP, with its address in the entry; change may be nil.
func (p *udPair) vector(i int, change func(*abi.DatagramWQE)) (x abi.SendWQE) {
	d := abi.DatagramWQE{
		Opcode: abi.OpSend, Flags: abi.SendSignaled, RemoteQPN: p.qps[1-i].number, RemoteQKey: testQKey,
		DGID: p.hosts[1-i].gid(), TrafficClass: 0x20, HopLimit: 9, VLAN: abi.NoVLAN,
	}
	if change != nil {
		change(&d)
	}
	b := make([]byte, abi.DatagramWQESize)
	d.Marshal(b)
	x.Unmarshal(b)
	return x
}

// TestAddressVectors: datagrams whose entries contain the address arrive as with a handle, whatever
// the number of addresses. Invalid addresses are errors of the request. (DEV-948)
func TestAddressVectors(t *testing.T) {
	udAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		a, b := p.qps[0], p.qps[1]
		for i := range 2500 { // more than are remembered
			b.receive(uint64(i), p.mem[1].sge(0, 2000))
			x := p.vector(0, func(d *abi.DatagramWQE) { d.FlowLabel = uint32(i / 2) })
			x.WRID = uint64(i)
			if i%3 == 0 {
				a.postInline(x, []byte("inline"))
			} else {
				a.post(x, p.mem[0].sge(0, 100))
			}
			success(t, a.send.wait(1))
			if got := b.recv.wait(1)[0]; got.Status != abi.WCSuccess || got.WRID != uint64(i) || got.SrcQP != a.number {
				t.Fatalf("%d: %+v", i, got)
			}
		}
		for name, change := range map[string]func(*abi.DatagramWQE){
			"no address":    func(d *abi.DatagramWQE) { d.DGID = [16]byte{} },
			"multicast":     func(d *abi.DatagramWQE) { d.DGID = [16]byte{0xff, 2, 15: 1} },
			"VLAN":          func(d *abi.DatagramWQE) { d.VLAN = 5 },
			"SL":            func(d *abi.DatagramWQE) { d.SL = 16 },
			"flow label":    func(d *abi.DatagramWQE) { d.FlowLabel = 1 << 20 },
			"no such GID":   func(d *abi.DatagramWQE) { d.SGIDIndex = 1 },
			"outside table": func(d *abi.DatagramWQE) { d.SGIDIndex = 200 },
		} {
			a.post(p.vector(0, change), p.mem[0].sge(0, 10))
			if got := a.send.wait(1); got[0].Status != abi.WCLocQPOpErr || a.q.State() != abi.QPStateSQE {
				t.Errorf("%s: %s", name, describe(got))
			}
			a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
		}
	})
}

// otherPD makes a handle of another protection domain.
func (p *udPair) otherPD() uint32 {
	pd, st := p.hosts[0].fn.AllocPD()
	ok(p.t, st)
	return p.hosts[0].createAH(pd, p.hosts[1].gid(), 0, 0)
}

// TestDatagramRefused sends to an address where nobody is. The sends succeed, after a short wait
// the first time, and datagrams arrive as soon as there is somebody.
func TestDatagramRefused(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	a, b := p.qps[0], p.qps[1]
	p.refuse = true
	for i := range 10 {
		x := p.to(0, abi.OpSend)
		x.WRID = uint64(i)
		a.post(x, p.mem[0].sge(0, 100))
	}
	success(t, a.send.wait(10))
	if n := p.hosts[0].fn.Stats().DatagramsLost; n != 10 {
		t.Fatalf("%d lost", n)
	}
	p.refuse = false
	p.settle(2e9)
	b.receive(1, p.mem[1].sge(0, 200))
	a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	success(t, b.recv.wait(1))
}

// TestDatagramWaits never answers a link. Sends do not wait for it, and their datagrams wait no
// longer than rof.LinkPatience.
func TestDatagramWaits(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.step()
	a, f := p.qps[0], p.hosts[0].fn
	ah := p.nobody(99)
	x := p.to(0, abi.OpSend)
	x.AHN = ah
	start := p.now
	a.post(x, p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	if took := p.now - start; took != 0 || f.Links.Held() != 1 {
		t.Fatalf("waited %d ms, %d datagrams held", took/1e6, f.Links.Held())
	}
	p.settle(rof.LinkPatience - 1)
	if lost := f.Stats().DatagramsLost; lost != 0 {
		t.Fatalf("%d lost early", lost)
	}
	p.settle(1)
	if lost := f.Stats().DatagramsLost; lost != 1 || f.Links.Held() != 0 {
		t.Fatalf("%d lost, %d held", lost, f.Links.Held())
	}
	ok(t, f.DestroyAH(p.now, ah))
	p.settle(100e9)
	if n := f.Links.Len(); n != 1 {
		t.Fatalf("%d links", n)
	}
}

// nobody makes a handle of host 0 whose link is never answered.
func (p *udPair) nobody(n int) uint32 {
	p.t.Helper()
	ah := p.hosts[0].createAH(p.pd[0], [16]byte{10: 0xff, 11: 0xff, 12: 11, 14: byte(n >> 8), 15: byte(n)}, 0, 0)
	if p.hosts[0].rof().NextLink() == nil {
		p.t.Fatal("no link is wanted") // and it is not answered
	}
	return ah
}

// silent makes a handle of host 0 whose link is open, but whose connection has nobody at the other
// end.
func (p *udPair) silent(n int) uint32 {
	p.t.Helper()
	ah := p.hosts[0].createAH(p.pd[0], [16]byte{10: 0xff, 11: 0xff, 12: 12, 14: byte(n >> 8), 15: byte(n)}, 0, 0)
	p.hosts[0].rof().NextLink().Open(p.now, p.unanswered(), p.hosts[0].gid())
	return ah
}

// unanswered returns a connection of host 0 with nobody at the other end.
func (p *udPair) unanswered() *rof.Datagrams {
	p.t.Helper()
	h := p.hosts[0]
	p.cid += 2
	c, err := h.fe.Open(p.now, falcon.ConnConfig{
		LocalCID: p.cid, RemoteCID: p.cid + 1, LocalFunction: 1, RemoteFunction: 2, Protocol: falconwire.ProtocolRDMA,
		Ordered: true, MTU: p.mtu + 56, Credits: h.credits,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return h.rof().Datagrams(c)
}

// TestDeadDestination: if destinations do not answer, one or many, with any limit of the function's
// credits, datagrams to another destination arrive soon and without loss, from an ordinary queue
// pair or from QP 1. (Falcon §8.2.3)
func TestDeadDestination(t *testing.T) {
	for name, c := range map[string]struct {
		dead func(p *udPair, n int) uint32
		many int
		typ  abi.QPType
		most falcon.Time // that all may take
	}{
		"not found":           {(*udPair).nobody, 1, abi.QPTypeUD, rof.LinkStall},
		"silent":              {(*udPair).silent, 1, abi.QPTypeUD, rof.LinkStall},
		"silent, QP 1":        {(*udPair).silent, 1, abi.QPTypeGSI, rof.LinkStall},
		"many not found":      {(*udPair).nobody, 1500, abi.QPTypeUD, rof.LinkStall},
		"many silent":         {(*udPair).silent, 40, abi.QPTypeUD, 2 * rof.LinkStall},
		"silent again, later": {(*udPair).silent, 1, abi.QPTypeUD, rof.LinkStall},
	} {
		t.Run(name, func(t *testing.T) {
			p := newUDPair(t, worldConfig{arena: 64 << 20}, qpConfig{})
			p.step()
			a := p.hosts[0].createUD(p.pd[0], qpConfig{log2: 12, typ: c.typ, send: p.hosts[0].createCQ(13)})
			b := p.hosts[1].createUD(p.pd[1], qpConfig{log2: 10})
			ahs := make([]uint32, c.many)
			for i := range ahs {
				ahs[i] = c.dead(p, i)
			}
			for round := range 2 {
				start := p.now
				for i := range 1500 {
					x := p.to(0, abi.OpSendImm)
					x.AHN = ahs[i%c.many]
					a.post(x, p.mem[0].sge(0, 1000))
					if i%3 == 0 {
						b.receive(uint64(i), p.mem[1].sge(0, 2000))
						x := p.to(0, abi.OpSendImm)
						x.RemoteQPN, x.Imm = b.number, uint32(i)
						a.post(x, p.mem[0].sge(0, 1000))
					}
				}
				for i, r := range b.recv.wait(500) {
					if r.Status != abi.WCSuccess || r.Imm != uint32(3*i) {
						t.Fatalf("round %d: receive %d: %+v", round, i, r)
					}
				}
				success(t, a.send.wait(2000))
				if took := p.now - start; took > c.most+20e6 {
					t.Errorf("round %d took %d ms", round, took/1e6)
				}
				if held := p.hosts[0].fn.Links.Held(); held > rof.FunctionQueue {
					t.Errorf("%d datagrams held", held)
				}
				if name == "silent again, later" {
					p.settle(20e9) // falcon gives the connection up
				}
			}
		})
	}
}

// TestDatagramBackpressure: a destination that is slow, or has to wait for credits, slows the
// sender down, and nothing is lost.
func TestDatagramBackpressure(t *testing.T) {
	udAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{net: sim.Impairment{Delay: 1e6}, credit: credit.Cost{3, 200, 3, 200, 3, 200}}, qpConfig{log2: 9})
		a, b := p.qps[0], p.qps[1]
		for i := range 400 {
			b.receive(uint64(i), p.mem[1].sge(0, 2000))
			x := p.to(0, abi.OpSendImm)
			x.Imm = uint32(i)
			a.post(x, p.mem[0].sge(0, 1000))
		}
		for i, r := range b.recv.wait(400) {
			if r.Status != abi.WCSuccess || r.Imm != uint32(i) {
				t.Fatalf("receive %d: %+v", i, r)
			}
		}
		success(t, a.send.wait(400))
		if s := p.hosts[0].fn.Stats(); s.DatagramsLost != 0 || (s.CreditWaits == 0) != overRoCE {
			t.Errorf("%+v", s)
		}
	})
}

// TestDatagramRecovers: a destination that was away for long is sent to again as soon as it is
// back.
func TestDatagramRecovers(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{log2: 9})
	a, b := p.qps[0], p.qps[1]
	p.step()
	p.cut(0, true)
	for range 300 {
		a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	}
	success(t, a.send.wait(300))
	p.settle(1e9)
	p.cut(0, false)
	p.settle(3e9) // a retransmission
	if p.hosts[0].fn.Links.Held() != 0 {
		t.Fatalf("%d datagrams held", p.hosts[0].fn.Links.Held())
	}
	b.receive(1, p.mem[1].sge(0, 200))
	a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, a.send.wait(1))
	success(t, b.recv.wait(1))
}

// TestDatagramIsWhatWasPosted: memory may go away or change once the send is complete, also while
// the datagram waits for its link or is sent again. Memory that cannot be read fails the send, in
// either error mode.
func TestDatagramIsWhatWasPosted(t *testing.T) {
	for _, cie := range []bool{false, true} {
		p := newUDPair(t, worldConfig{}, qpConfig{cie: cie})
		a, b, h := p.qps[0], p.qps[1], p.hosts[0]
		m := h.register(p.pd[0], 4096, allAccess)
		fill(m.bytes(), 3)
		want := bytes.Clone(m.bytes()[:1000])
		b.receive(1, p.mem[1].sge(0, 2000))
		a.post(p.to(0, abi.OpSend), m.sge(0, 1000))
		h.e.Run(p.now) // there is no link yet
		success(t, a.send.wait(1))
		clear(m.bytes())
		ok(t, h.fn.DeregMR(m.key))
		success(t, b.recv.wait(1))
		if !bytes.Equal(p.mem[1].bytes()[40:1040], want) {
			t.Errorf("complete in error %t: the datagram is not what was posted", cie)
		}

		h.fn.UseFaults(memoryGone{})
		b.receive(2, p.mem[1].sge(0, 2000))
		x := p.to(0, abi.OpSend)
		x.WRID = 7
		a.post(x, p.mem[0].sge(0, 1000))
		got, state := a.send.wait(1)[0], map[bool]abi.QPState{false: abi.QPStateSQE, true: abi.QPStateRTS}[cie]
		if got.WRID != 7 || got.Status != abi.WCLocProtErr || a.q.State() != state {
			t.Errorf("complete in error %t: %+v, QP in %v", cie, got, a.q.State())
		}
		p.settle(1e9)
		if r, any := b.recv.poll(); any {
			t.Errorf("complete in error %t: something was received: %+v", cie, r)
		}
	}
}

// memoryGone makes memory behind regions disappear.
type memoryGone struct{ holding }

func (memoryGone) Access() bool     { return true }
func (memoryGone) Hold(uint32) bool { return false }

// TestLinkLife: links outlive their handles for a while and then end on both sides. The peer's end
// goes with the connection. Sends in progress on a connection that ends complete.
func TestLinkLife(t *testing.T) {
	udAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		a := p.qps[0]
		send := func() {
			t.Helper()
			p.qps[1].receive(1, p.mem[1].sge(0, 200))
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
			success(t, a.send.wait(1))
			success(t, p.qps[1].recv.wait(1))
		}
		send()
		ok(t, p.hosts[0].fn.DestroyAH(p.now, p.ah[0]))
		p.settle(10e9)
		p.ah[0] = p.hosts[0].createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
		send()
		for i, h := range p.hosts {
			ok(t, h.fn.DestroyAH(p.now, p.ah[i]))
		}
		p.settle(100e9)
		active := 0
		for _, h := range p.hosts {
			h.fn.Links.Each(func(l *rof.Link) {
				if !l.Passive() {
					active++
				}
			})
		}
		if active != 0 {
			t.Fatalf("%d links left", active)
		}
		p.ah[0] = p.hosts[0].createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
		p.step()
		for range 20 {
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
		}
		p.hosts[0].e.Run(p.now)
		p.hosts[0].fn.Links.Each(func(l *rof.Link) { l.Disconnected(p.now) })
		success(t, a.send.wait(20))
		if u := p.hosts[0].credits.InUse(); u != (credit.Cost{}) {
			t.Fatalf("credits in use %v", u)
		}
		ok(t, p.hosts[0].fn.DestroyQP(p.now, a.number))
		p.hosts[0].fn.Close(p.now)
		p.settle(1e9)
		if p.hosts[0].e.shared.Timers.Deadline() != vtime.Never {
			t.Fatal("timers are left")
		}
	})
}

// TestAHs checks the commands of address handles.
func TestAHs(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectAH: 2}}})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	good := abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid()}
	for name, c := range map[string]struct {
		change func(c *abi.CreateAH)
		want   abi.Status
	}{
		"PD":             {func(c *abi.CreateAH) { c.PDN++ }, abi.StatusNotFound},
		"no GID":         {func(c *abi.CreateAH) { c.DGID = [16]byte{} }, abi.StatusInvalidArgument},
		"IPv4 multicast": {func(c *abi.CreateAH) { c.DGID[12] = 224 }, abi.StatusUnsupported},
		"IPv6 multicast": {func(c *abi.CreateAH) { c.DGID = [16]byte{0xff, 2} }, abi.StatusUnsupported},
		"flow label":     {func(c *abi.CreateAH) { c.FlowLabel = 1 << 20 }, abi.StatusInvalidArgument},
		"SL":             {func(c *abi.CreateAH) { c.SL = 16 }, abi.StatusInvalidArgument},
		"VLAN":           {func(c *abi.CreateAH) { c.VLAN = 5 }, abi.StatusUnsupported},
		"SGID index":     {func(c *abi.CreateAH) { c.SGIDIndex = 1 }, abi.StatusInvalidArgument},
	} {
		x := good
		c.change(&x)
		if _, st := h.fn.CreateAH(w.now, &x); st != c.want {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
	}
	n, st := h.fn.CreateAH(w.now, &good)
	ok(t, st)
	_, st = h.fn.CreateAH(w.now, &good)
	ok(t, st)
	if _, st := h.fn.CreateAH(w.now, &good); st != abi.StatusNoResources {
		t.Errorf("third handle: %v", st)
	}
	if st := h.fn.DeallocPD(pd); st != abi.StatusBusy {
		t.Errorf("PD in use: %v", st)
	}
	ok(t, h.fn.DestroyAH(w.now, n))
	if st := h.fn.DestroyAH(w.now, n); st != abi.StatusNotFound {
		t.Errorf("destroyed twice: %v", st)
	}
}

// TestGSI makes queue pair number 1 and sends to the peer's, as a kernel's connection manager does.
// (DEV-945)
func TestGSI(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	var gsi [2]*qp
	for i, h := range p.hosts {
		gsi[i] = h.createUD(p.pd[i], qpConfig{typ: abi.QPTypeGSI})
		gsi[i].modify(abi.ModifyQP{Mask: abi.QPAttrQKey, QKey: abi.GSIQKey})
		if gsi[i].number != 1 || h.fn.QP(1) == nil {
			t.Fatalf("number %d", gsi[i].number)
		}
		gsi[i].receive(1, p.mem[i].sge(0, 40+256))
	}
	x := p.to(0, abi.OpSend)
	x.RemoteQPN, x.RemoteQKey = 1, abi.GSIQKey
	gsi[0].post(x, p.mem[0].sge(0, 256))
	success(t, gsi[0].send.wait(1))
	if got := gsi[1].recv.wait(1)[0]; got.SrcQP != 1 || got.QPN != 1 || got.ByteLen != 296 {
		t.Fatalf("%+v", got)
	}
	if _, st := p.hosts[0].fn.CreateQP(&abi.CreateQP{
		PDN: p.pd[0], Type: abi.QPTypeGSI, SendCQ: gsi[0].send.number, RecvCQ: gsi[0].recv.number, SQLog2Entries: 1, RQLog2Entries: 1,
		SQLog2Stride: 6, RQLog2Stride: 5, SQLevels: 1, RQLevels: 1, SQPages: arenaBase, RQPages: arenaBase,
	}); st != abi.StatusBusy {
		t.Errorf("second GSI QP: %v", st)
	}
	ok(t, p.hosts[0].fn.DestroyQP(p.now, 1))
	if p.hosts[0].fn.QP(1) != nil {
		t.Error("it is still there")
	}
}

// TestDatagramModel sends random datagrams between several QPs of both hosts over bad links. Each
// arrives at most once, unchanged and at the right place, and completions come once and in order.
// Over a link without losses all datagrams arrive.
func TestDatagramModel(t *testing.T) {
	udAll(t, func(t *testing.T) {
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 3))
			imp := sim.Impairment{Delay: 20e3}
			if seed%2 == 1 && !overRoCE { // which is as good as its network
				imp = sim.Impairment{Delay: 20e3, Jitter: 40e3, Loss: 0.03, Duplicate: 0.03, Reorder: 0.1, ReorderDelay: 200e3}
			}
			p := newUDPair(t, worldConfig{net: imp, seed: seed, arena: 32 << 20}, qpConfig{log2: 8})
			qps := [2][]*qp{{p.qps[0]}, {p.qps[1]}}
			for i, h := range p.hosts {
				for range 2 {
					qps[i] = append(qps[i], h.createUD(p.pd[i], qpConfig{log2: 8}))
				}
				for j, q := range qps[i] {
					for k := range 100 {
						q.receive(uint64(k), p.mem[i].sge(j<<18+k*2048, 2048))
					}
				}
			}
			type datagram struct {
				from, to *qp
				n        int
			}
			sent := map[uint32]datagram{}
			for id := range uint32(120) {
				i := r.IntN(2)
				from, to := qps[i][r.IntN(3)], qps[1-i][r.IntN(3)]
				n := 4 + r.IntN(pathMTU-3)
				sent[id] = datagram{from, to, n}
				data := make([]byte, n)
				fill(data, uint64(id))
				binary.BigEndian.PutUint32(data, id)
				off := 900<<10 + int(id)*1024
				copy(p.mem[i].bytes()[off:], data)
				x := p.to(i, abi.OpSendImm)
				x.WRID, x.RemoteQPN, x.Imm = uint64(id), to.number, id
				from.post(x, p.mem[i].sge(off, n))
			}
			for i := range qps {
				for j, q := range qps[i] {
					var last int64 = -1
					want, expected := 0, 0
					for _, d := range sent {
						if d.from == q {
							want++
						}
						if d.to == q {
							expected++
						}
					}
					for _, c := range q.send.wait(want) {
						if c.Status != abi.WCSuccess || int64(c.WRID) <= last {
							t.Fatalf("seed %d: completion %+v after %d", seed, c, last)
						}
						last = int64(c.WRID)
					}
					for _, c := range q.recv.wait(expected) {
						d, ok := sent[c.Imm]
						data := make([]byte, d.n)
						fill(data, uint64(c.Imm))
						binary.BigEndian.PutUint32(data, c.Imm)
						at := j<<18 + int(c.WRID)*2048 + 40
						if !ok || d.to != q || c.SrcQP != d.from.number || int(c.ByteLen) != d.n+40 || !bytes.Equal(p.mem[i].bytes()[at:at+d.n], data) {
							t.Fatalf("seed %d: receive %+v of %+v", seed, c, d)
						}
						delete(sent, c.Imm)
					}
				}
			}
			p.settle(1e9)
			for i := range qps {
				for _, q := range qps[i] {
					if c, ok := q.recv.poll(); ok {
						t.Fatalf("seed %d: one too many: %+v", seed, c)
					}
				}
			}
		}
	})
}

// TestHostileDatagrams lets a peer with a valid link send everything except valid datagrams: READs,
// WRITEs, SENDs, noise. Only counters of the function change, and requests of connected services
// are refused as belonging to another connection (RDMA over Falcon §6.9).
func TestHostileDatagrams(t *testing.T) {
	raw := &rawULP{}
	p := newUDPair(t, worldConfig{peer: raw}, qpConfig{})
	p.refuse = true
	h := p.hosts[1]
	l := h.fn.Links.Accept(rof.LinkKey{GID: p.hosts[0].gid()}, 1)
	cfg := falcon.ConnConfig{LocalCID: 2, RemoteCID: 1, LocalFunction: 2, RemoteFunction: 1, Protocol: falconwire.ProtocolRDMA, MTU: pathMTU + 56}
	c, err := h.fe.Open(p.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.Open(p.now, h.rof().Datagrams(c), h.gid())
	atk := p.sim.Nodes[0].Engine
	cfg.LocalCID, cfg.RemoteCID, cfg.LocalFunction, cfg.RemoteFunction = 1, 2, 1, 2
	from, err := atk.Open(p.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := p.qps[1]
	b.receive(1, p.mem[1].sge(0, 2048))
	before := bytes.Clone(p.mem[1].bytes())
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		hd := wire.Headers{RBTH: wire.RBTH{Opcode: wire.Opcode(r.IntN(256)), DestQP: b.number, SN: uint32(i), Pad: uint8(r.IntN(4))}}
		if i%2 == 0 {
			hd.RBTH.Opcode = wire.UDSendOnly + wire.Opcode(r.IntN(2))
		}
		hd.RETH = wire.RETH{VA: p.mem[1].addr, RKey: p.mem[1].key, Length: 8}
		hd.Datagram = wire.DETH{QKey: uint32(r.IntN(2)), SourceQP: 3}
		packet := hd.Append(nil)
		switch r.IntN(3) {
		case 0:
			packet = packet[:r.IntN(len(packet)+1)]
		case 1:
			packet = append(packet, make([]byte, r.IntN(900))...)
		}
		raw.send = packet
		if r.IntN(4) == 0 && len(packet) <= falcon.MaxPullHeader {
			err = from.Pull(p.now, 1, len(packet), 8)
		} else {
			err = from.Push(p.now, 1, len(packet))
		}
		if err != nil {
			t.Fatal(err)
		}
		p.settle(100e3)
	}
	p.settle(1e9)
	if !bytes.Equal(before, p.mem[1].bytes()) {
		t.Error("memory changed")
	}
	if len(h.async) != 0 || b.q.State() != abi.QPStateRTS {
		t.Errorf("events %+v, QP in %v", h.async, b.q.State())
	}
	s := h.fn.Stats()
	if s.CIDMismatches == 0 || s.DatagramsLost == 0 || s.BadQKeys == 0 {
		t.Errorf("%+v", s)
	}
	if _, got := b.recv.poll(); got {
		t.Error("something was received")
	}
}

// TestDatagramSequence: on an ordered link the sequence numbers of a peer only rise (RDMA over
// Falcon §8.2). A datagram with an older number is lost. A missing number belongs to a datagram
// that its sender gave up.
func TestDatagramSequence(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		raw := &rawULP{}
		p := newUDPair(t, worldConfig{peer: raw}, qpConfig{})
		p.refuse = true
		h, b := p.hosts[1], p.qps[1]
		l := h.fn.Links.Accept(rof.LinkKey{GID: p.hosts[0].gid(), Ordered: ordered}, 1)
		cfg := falcon.ConnConfig{
			LocalCID: 2, RemoteCID: 1, LocalFunction: 2, RemoteFunction: 1, Protocol: falconwire.ProtocolRDMA, MTU: pathMTU + 56, Ordered: ordered,
		}
		c, err := h.fe.Open(p.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Open(p.now, h.rof().Datagrams(c), h.gid())
		cfg.LocalCID, cfg.RemoteCID, cfg.LocalFunction, cfg.RemoteFunction = 1, 2, 1, 2
		from, err := p.sim.Nodes[0].Engine.Open(p.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for i, sn := range []uint32{1, 2, 2, 1, 5, 4, 6, 0} {
			b.receive(uint64(i), p.mem[1].sge(0, 2048))
			hd := wire.Headers{RBTH: wire.RBTH{Opcode: wire.UDSendOnlyImm, DestQP: b.number, SN: sn}, Datagram: wire.DETH{QKey: testQKey, SourceQP: 3}}
			hd.Imm.Data = sn
			raw.send = hd.Append(nil)
			if err := from.Push(p.now, 1, len(raw.send)); err != nil {
				t.Fatal(err)
			}
			p.settle(1e6)
			if r, any := b.recv.poll(); any {
				got = append(got, r.Imm)
			}
		}
		want := []uint32{1, 2, 2, 1, 5, 4, 6, 0}
		if ordered {
			want = []uint32{1, 2, 5, 6}
		}
		if !slices.Equal(got, want) {
			t.Errorf("ordered %t: delivered %d, want %d", ordered, got, want)
		}
	}
}

// TestLinkIsKept: the connection of a handle stays for a while, and the next handle for the same
// path uses it. The number of links is limited if a function makes and destroys handles to ever new
// addresses.
func TestLinkIsKept(t *testing.T) {
	p := newUDPair(t, worldConfig{limits: verbs.Limits{Links: 5}}, qpConfig{})
	h := p.hosts[0]
	links := func() (n int) {
		h.fn.Links.Each(func(*rof.Link) { n++ })
		return n
	}
	before := links()
	ok(t, h.fn.DestroyAH(p.now, p.ah[0]))
	if n := links(); n != before || n == 0 {
		t.Errorf("%d links are kept of %d", n, before)
	}
	p.ah[0] = h.createAH(p.pd[0], p.hosts[1].gid(), 0x20, 9)
	if n := links(); n != before {
		t.Errorf("%d links for the handle that came back, want %d", n, before)
	}
	most := 0
	for i := range 200 {
		ah := h.createAH(p.pd[0], [16]byte{0: 0xfd, 14: 1, 15: byte(i)}, 0x20, 9)
		ok(t, h.fn.DestroyAH(p.now, ah))
		most = max(most, links())
	}
	if most < 20 || most > 100 {
		t.Errorf("%d links are kept of 200", most)
	}
}

// TestLinkFlood lets a peer open links without limit.
func TestLinkFlood(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Links: 20}})
	f, accepted := w.hosts[1].fn, 0
	for g := range 10 {
		for class := range 10 {
			if f.Links.Accept(rof.LinkKey{GID: [16]byte{15: byte(g)}, TrafficClass: uint8(class << 2), HopLimit: 1}, uint32(g)) != nil {
				accepted++
			}
		}
	}
	if accepted != 20 || f.Links.Len() != 20 {
		t.Fatalf("%d accepted, %d links", accepted, f.Links.Len())
	}
	f.Links.Each(func(l *rof.Link) { l.Refused(w.now) })
	if f.Links.Len() != 0 {
		t.Fatalf("%d links left", f.Links.Len())
	}
	accepted = 0
	for g := range 10 { // one function with many addresses, to many
		if f.Links.Accept(rof.LinkKey{GID: [16]byte{15: byte(g)}, SGID: [16]byte{1, 15: byte(g)}}, 1) != nil {
			accepted++
		}
	}
	if accepted != 8 {
		t.Fatalf("%d accepted of one function", accepted)
	}
	if f.Links.Accept(rof.LinkKey{GID: [16]byte{1}}, 2) == nil {
		t.Fatal("none is accepted any more")
	}
}

// TestRandomDatagrams lets a guest post entries of random bytes, with handles that exist or do not.
// Each completes or is flushed, the function survives, memory outside the peer's receives does not
// change, and nothing is leaked.
func TestRandomDatagrams(t *testing.T) {
	udAll(t, func(t *testing.T) {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 11))
			p := newUDPair(t, worldConfig{seed: seed}, qpConfig{log2: 8, sigAll: true})
			a, b := p.qps[0], p.qps[1]
			guard := bytes.Clone(p.mem[1].bytes()[512<<10:])
			for i := range 100 {
				b.receive(uint64(i), p.mem[1].sge(i*2048, 2048))
			}
			for range 80 {
				var entry [512]byte
				for i := range entry {
					entry[i] = byte(r.Uint32())
				}
				x := abi.SendWQE{
					Opcode: abi.Opcode(r.IntN(12)), Flags: uint8(r.IntN(16)), NumSGE: uint8(r.IntN(6)), InlineLen: uint32(r.IntN(300)),
					AHN: []uint32{p.ah[0], p.ah[0], r.Uint32(), 0}[r.IntN(4)], RemoteQPN: []uint32{b.number, r.Uint32()}[r.IntN(2)],
					RemoteQKey: []uint32{testQKey, r.Uint32()}[r.IntN(2)],
				}
				x.Marshal(entry[:])
				for i := range 4 {
					s := p.mem[0].sge(r.IntN(1<<20), r.IntN(6000))
					if r.IntN(8) == 0 {
						s.LKey = r.Uint32()
					}
					s.Marshal(entry[abi.SendWQEHeader+i*abi.SGESize:])
				}
				if err := a.sq.Push(entry[:]); err != nil {
					t.Fatal(err)
				}
				if _, _, err := a.sq.Publish(); err != nil {
					t.Fatal(err)
				}
				a.ring()
				a.send.wait(1)
				if a.q.State() == abi.QPStateSQE {
					a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
				}
			}
			p.settle(1e9)
			for i, h := range p.hosts {
				if len(h.async) != 0 || h.credits.InUse() != (credit.Cost{}) {
					t.Fatalf("seed %d, host %d: events %+v, credits %v", seed, i, h.async, h.credits.InUse())
				}
			}
			if a.q.State() != abi.QPStateRTS || b.q.State() != abi.QPStateRTS || !bytes.Equal(guard, p.mem[1].bytes()[512<<10:]) {
				t.Fatalf("seed %d: QPs in %v and %v", seed, a.q.State(), b.q.State())
			}
		}
	})
}

// TestDatagramOrderings tests RDMA over Falcon §6.4 for datagrams. Over a link that reorders, data
// arrives in order only in strong mode, and sends complete in order. If requests complete in error,
// an invalid one affects nothing else. (DEV-940, DEV-942, DEV-951)
func TestDatagramOrderings(t *testing.T) {
	for _, m := range modes {
		overtaken, early := false, false
		for seed := range uint64(10) {
			imp := sim.Impairment{Delay: 20e3, Jitter: 60e3, Loss: 0.05, Reorder: 0.1, ReorderDelay: 200e3}
			p := newUDPair(t, worldConfig{seed: seed, net: imp}, qpConfig{ordering: m.ordering, cie: true})
			a, b := p.qps[0], p.qps[1]
			const n = 50
			for i := range n - 1 { // one is not sent
				b.receive(uint64(i), p.mem[1].sge(i*1000, 1000))
			}
			for i := range n {
				x := p.to(0, abi.OpSendImm)
				x.WRID, x.Imm = uint64(i), uint32(i)
				if i == n/2 {
					x.AHN = 99
				}
				a.post(x, p.mem[0].sge(0, 100))
			}
			for i, c := range a.send.wait(n) {
				if want := map[bool]abi.WCStatus{true: abi.WCLocQPOpErr}[c.WRID == n/2]; c.Status != want {
					t.Fatalf("%s, seed %d: %+v, want %v", m.name, seed, c, want)
				}
				early = early || int(c.WRID) != i
			}
			last := -1
			for _, c := range b.recv.wait(n - 1) {
				success(t, []abi.CQE{c})
				overtaken = overtaken || int(c.Imm) < last
				last = int(c.Imm)
			}
			if early {
				t.Errorf("%s, seed %d: sends completed before earlier ones", m.name, seed)
			}
			if a.q.State() != abi.QPStateRTS || len(p.hosts[0].async) != 0 {
				t.Fatalf("%s: QP in %v, events %+v", m.name, a.q.State(), p.hosts[0].async)
			}
			// An invalid receive behaves in the same way.
			bad := p.mem[1].sge(0, 1000)
			bad.LKey++
			b.receive(77, bad)
			a.post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
			if c := b.recv.wait(1)[0]; c.WRID != 77 || c.Status != abi.WCLocProtErr || b.q.State() != abi.QPStateRTS {
				t.Fatalf("%s: receive %+v, QP in %v", m.name, c, b.q.State())
			}
		}
		if overtaken == (m.ordering == abi.OrderingStrong) {
			t.Errorf("%s: datagrams overtook others: %t", m.name, overtaken)
		}
	}
}

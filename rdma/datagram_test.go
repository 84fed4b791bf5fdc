package rdma

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	rocewire "github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/verbs"
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
				l.Open(w.now, c, own.gid())
				return
			}
			c, err := own.fe.Open(w.now, cfg)
			if err != nil {
				w.t.Fatal(err)
			}
			l.Open(w.now, c, own.gid())
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

// TestDatagramsArriveAsOnHardware sends datagrams of all sizes, with and without immediate data,
// inline or gathered, and checks everything that the receive completion of a real NIC contains.
// (DEV-940, DEV-944)
func TestDatagramsArriveAsOnHardware(t *testing.T) {
	overAll(t, func(t *testing.T) {
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
			if s := p.hosts[0].fn.Stats(); over != byRoCE && (s.PushesTx != 6 || s.BytesTx != 0+1+3+4+100+pathMTU) {
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

// TestUndeliverableDatagramsAreLostAndCounted: datagrams that cannot be delivered are lost and
// counted, and no queue pair is affected. (DEV-943)
func TestUndeliverableDatagramsAreLostAndCounted(t *testing.T) {
	overAll(t, func(t *testing.T) {
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

// TestControlledQKeysAreThoseOfTheQueuePair: if bit 31 is set, the QP's own Q_Key is sent, whatever
// the program asks for.
func TestControlledQKeysAreThoseOfTheQueuePair(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.qps[1].receive(1, p.mem[1].sge(0, 200))
	x := p.to(0, abi.OpSend)
	x.RemoteQKey = abi.GSIQKey
	p.qps[0].post(x, p.mem[0].sge(0, 100))
	success(t, p.qps[0].send.wait(1))
	success(t, p.qps[1].recv.wait(1))
}

// TestABadDatagramMovesItsQueuePairToSQE: an error in a work request itself moves the QP to SQE,
// where it continues to receive. ModifyQP brings it back. (DEV-942)
func TestABadDatagramMovesItsQueuePairToSQE(t *testing.T) {
	overAll(t, func(t *testing.T) {
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

// TestAddressesInEntriesWorkLikeHandles: datagrams whose entries contain the address arrive as with
// a handle, whatever the number of addresses. Invalid addresses are errors of the request.
// (DEV-948)
func TestAddressesInEntriesWorkLikeHandles(t *testing.T) {
	overAll(t, func(t *testing.T) {
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

// TestAddressHandleCommands checks the commands of address handles.
func TestAddressHandleCommands(t *testing.T) {
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

// TestQueuePair1TalksToThePeers makes queue pair number 1 and sends to the peer's, as a kernel's
// connection manager does. (DEV-945)
func TestQueuePair1TalksToThePeers(t *testing.T) {
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

// TestDatagramsKeepTheOrderOfTheirMode tests RDMA over Falcon §6.4 for datagrams. Over a link that
// reorders, data arrives in order only in strong mode, and sends complete in order. If requests
// complete in error, an invalid one affects nothing else. (DEV-940, DEV-942, DEV-951)
func TestDatagramsKeepTheOrderOfTheirMode(t *testing.T) {
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

// TestTheLongestDatagramArrives: the longest datagram that a link carries arrives, one byte more is
// lost.
func TestTheLongestDatagramArrives(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		p.step()
		a, b := p.qps[0], p.qps[1]
		most := pathMTU + 56 - wire.Opcodes[ib.UD|ib.SendOnlyImm].Len
		if over == byRoCE {
			most = 1500 - 28 - rocewire.MaxDataHeaderLen - rocewire.ICRCLen // whatever a packet may have around data
		}
		for _, n := range []int{most, most + 1} {
			before := p.hosts[0].fn.Stats().DatagramsLost
			b.receive(1, p.mem[1].sge(0, 4096))
			a.post(p.to(0, abi.OpSendImm), p.mem[0].sge(0, n))
			success(t, a.send.wait(1))
			p.settle(1e9)
			r, arrived := b.recv.poll()
			if lost := p.hosts[0].fn.Stats().DatagramsLost - before; arrived != (n == most) || arrived && int(r.ByteLen) != n+verbs.GRHSize || lost != uint64(n-most) {
				t.Errorf("%d bytes: arrived %t, %d lost", n, arrived, lost)
			}
		}
	})
}

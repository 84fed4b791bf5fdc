package roce_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestAConnectionAttachesWhereItsPacketsFit: a connection is attached where the longest packet with data fits the network's
// MTU, and not where it is a byte too long.
func TestAConnectionAttachesWhereItsPacketsFit(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		longest := 0
		for _, op := range []abi.Opcode{abi.OpWriteImm, abi.OpSend, abi.OpSendInv} {
			p := &peer{world: newWorld(1, v6, 1500, sim.Impairment{}), t: t, now: 1e9}
			p.attach(&target{serving: true}, func(x *transport.Terms) { x.XRC = true })
			p.posts(op, segment)
			longest = max(longest, p.allSent()[0].size)
		}
		for mtu, want := range map[int]bool{longest - 1: false, longest: true, longest + 1: true, segment: false} {
			w := newWorld(1, v6, mtu, sim.Impairment{})
			terms := transport.Terms{Endpoint: &target{}, QPN: 17, Peer: 18, PathMTU: segment, Sending: &transport.Sending{}, Account: &transport.Account{}}
			if n, ok := w.connect(0).Attach(&terms); ok != want || ok && n != segment {
				t.Errorf("IPv6 %t, MTU %d, packets of %d: attached %t with %d bytes", v6, mtu, longest, ok, n)
			}
		}
	}
}

// TestTermsThatCannotBeKeptAreRefused: which terms a connection has no way to keep.
func TestTermsThatCannotBeKeptAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *transport.Terms)
		want   bool
	}{
		"as ever":          {func(*transport.Terms) {}, true},
		"highest number":   {func(x *transport.Terms) { x.Peer = 1<<24 - 1 }, true},
		"higher number":    {func(x *transport.Terms) { x.Peer = 1 << 24 }, false},
		"unordered":        {func(x *transport.Terms) { x.Unordered = true }, false},
		"in error":         {func(x *transport.Terms) { x.InError = true }, false},
		"not sending":      {func(x *transport.Terms) { x.Sending = nil }, false},
		"no path MTU":      {func(x *transport.Terms) { x.PathMTU = 257 }, false},
		"a large path MTU": {func(x *transport.Terms) { x.PathMTU = 4096 }, true},
		"too large":        {func(x *transport.Terms) { x.PathMTU = 8192 }, false},
	} {
		w := newWorld(1, false, 9000, sim.Impairment{})
		terms := transport.Terms{Endpoint: &target{}, QPN: 17, Peer: 18, PathMTU: segment, Sending: &transport.Sending{}, Account: &transport.Account{}}
		c.change(&terms)
		conn := w.connect(0)
		if _, ok := conn.Attach(&terms); ok != c.want {
			t.Errorf("%s: attached %t", name, ok)
		}
		if _, ok := conn.Attach(&terms); ok && c.want {
			t.Errorf("%s: attached twice", name)
		}
	}
}

// TestIPHeadersFollowTheWay: what the IP headers of connections say. Networks may mark their packets.
func TestIPHeadersFollowTheWay(t *testing.T) {
	for _, c := range []struct {
		v6          bool
		way         transport.Way
		class, hops uint8
		flow        uint32
	}{
		{false, transport.Way{}, wire.ECT0, 64, 0},
		{false, transport.Way{Class: 0xff, Hops: 1}, 0xfc | wire.ECT0, 1, 0},
		{true, transport.Way{Class: 0x21, Hops: 255, FlowLabel: 0xabcde}, 0x20 | wire.ECT0, 255, 0xabcde},
	} {
		p := &peer{world: newWorld(1, c.v6, 1500, sim.Impairment{}), t: t, now: 1e9}
		c.way.Peer = p.ports[1].Addr
		conn := p.ports[0].Open(0, c.way, nil).(*roce.Conn)
		attach(t, conn, &target{serving: true}, 17, 18)
		p.conn = conn
		p.posts(abi.OpWrite, 8)
		w := p.allSent()[0].way
		if w.Class != c.class || w.Hops != c.hops || w.Flow != c.flow || w.Src != p.ports[0].Addr || w.Dst != p.ports[1].Addr {
			t.Errorf("%+v: %+v", c.way, w)
		}
	}
}

// source is the UDP source port of a connection.
func source(t *testing.T, flow, qpn, other uint32) uint16 {
	p := &peer{world: newWorld(1, true, 1500, sim.Impairment{}), t: t, now: 1e9}
	p.conn = p.ports[0].Open(0, transport.Way{Peer: p.ports[1].Addr, FlowLabel: flow}, nil).(*roce.Conn)
	attach(t, p.conn, &target{serving: true}, qpn, other)
	p.posts(abi.OpWrite, 8)
	return p.allSent()[0].way.SrcPort
}

// TestSourcePortsComeFromFlowLabelsOrQueuePairs: a flow label decides on the UDP source port as Linux has it
// (rdma_flow_label_to_udp_sport); without one the queue pairs do (rdma_calc_flow_label), so that
// connections that differ in either are spread over many ports of the same range (Annex A17.9.4).
func TestSourcePortsComeFromFlowLabelsOrQueuePairs(t *testing.T) {
	for flow, want := range map[uint32]uint16{1: 0xc001, 0x3fff: 0xffff, 0x4000: 0xc001, 0x4001: 0xc000, 0xfffff: 0xffc0, 0x48001: 0xc013} {
		if got := source(t, flow, 17, 18); got != want {
			t.Errorf("flow label %#x: port %#x, want %#x", flow, got, want)
		}
	}
	for _, c := range []struct {
		qpn, peer uint32
		want      uint16
	}{{17, 18, 0xc132}, {0x123456, 0xabcdef, linuxSourcePort(0x123456, 0xabcdef)}, {0xffffff, 0xfffffe, linuxSourcePort(0xffffff, 0xfffffe)}} {
		if got := source(t, 0, c.qpn, c.peer); got != c.want {
			t.Errorf("queue pairs %#x and %#x: port %#x, want %#x", c.qpn, c.peer, got, c.want)
		}
	}
	own, others := map[uint16]bool{}, map[uint16]bool{}
	for i := range uint32(100) {
		a, b := source(t, 0, 2+i, 18), source(t, 0, 17, 2+i)
		if a < 0xc000 || b < 0xc000 {
			t.Fatalf("ports %#x, %#x", a, b)
		}
		own[a], others[b] = true, true
	}
	if len(own) < 90 || len(others) < 90 {
		t.Errorf("100 connections have %d ports by their own queue pair, %d by the other", len(own), len(others))
	}
}

// linuxSourcePort is rdma_get_udp_sport of Linux 6.1 (include/rdma/ib_verbs.h) without a flow
// label, word by word.
func linuxSourcePort(lqpn, rqpn uint32) uint16 {
	v := uint64(lqpn) * uint64(rqpn)
	v ^= v >> 20
	v ^= v >> 40
	fl := uint32(v & 0xfffff)
	flLow, flHigh := fl&0x03fff, fl&0xfc000
	flLow ^= flHigh >> 14
	return uint16(flLow | 0xc000)
}

// TestPacketsForOtherAddressesOrPartitionsAreDropped: packets to another address of a queue pair, or in a partition of another
// number, are for nobody. A limited member of the partition speaks too.
func TestPacketsForOtherAddressesOrPartitionsAreDropped(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.way.Dst = netip.MustParseAddr("10.0.0.3")
	p.asks(ib.WriteOnly, 100, 8)
	if s := p.ports[0].Stats(); s.Strange != 1 || s.Received != 0 {
		t.Errorf("%+v", s)
	}
	p.way.Dst = p.ports[0].Addr
	for i, c := range []struct {
		key  uint16
		want int
	}{{0xffff, 1}, {0x7fff, 2}, {0xfffe, 2}, {0x3fff, 2}} {
		h := wire.Headers{BTH: wire.BTH{Opcode: ib.WriteOnly, DestQP: 17, PSN: wire.PSN(100 + min(i, 1)), PKey: c.key}}
		b := append(h.Append(make([]byte, p.way.HeaderLen())), make([]byte, wire.ICRCLen)...)
		p.way.Put(b)
		p.ports[0].Receive(p.now, b)
		if len(e.packets) != c.want {
			t.Errorf("key %#x: %d packets placed, want %d", c.key, len(e.packets), c.want)
		}
	}
}

// TestCorruptPacketsAreCounted: a packet that is not RoCEv2 is counted as wrong and dropped.
func TestCorruptPacketsAreCounted(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	for i, h := range []wire.BTH{{Opcode: 0x1f}, {Opcode: ib.SendOnly, Pad: 3}} { // reserved; more pad than data
		b := append((&wire.Headers{BTH: h}).Append(make([]byte, p.way.HeaderLen())), make([]byte, wire.ICRCLen)...)
		p.way.Put(b)
		p.ports[0].Receive(p.now, b)
		if s := p.ports[0].Stats(); s.Wrong != uint64(i+1) || s.Received+s.Strange != 0 {
			t.Errorf("%+v: %+v", h, s)
		}
	}
}

// TestASumOfStatsHasEveryCounter: every counter is summed.
func TestASumOfStatsHasEveryCounter(t *testing.T) {
	var one, sum transport.PortStats
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
	}
	sum.Add(&one)
	sum.Add(&one)
	for i := range v.NumField() {
		if got := reflect.ValueOf(sum).Field(i).Uint(); got != uint64(2*(i+1)) {
			t.Errorf("%s: %d after twice %d", v.Type().Field(i).Name, got, i+1)
		}
	}
}

// TestAClosedPortKeepsItsCountsAndSendsNothing: what a port counted stays, once; nothing is sent any more.
func TestAClosedPortKeepsItsCountsAndSendsNothing(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.posts(abi.OpWrite, 8)
	p.posts(abi.OpWrite, 8)
	p.next()
	for range 3 {
		p.ports[0].Close()
		if s := p.engines[0].Stats(); s.Sent != 1 {
			t.Errorf("%+v", s)
		}
	}
	if list := p.allSent(); len(list) != 0 || p.engines[0].Waiting() {
		t.Errorf("sends %v", psns(list))
	}
	p.attach(&scripted{target: target{serving: true}}) // late
	p.posts(abi.OpWrite, 8)
	if list := p.allSent(); len(list) != 0 {
		t.Errorf("sends %v over a port that is closed", psns(list))
	}
}

// TestAPortWithNothingToSendHoldsNoOtherUp: a port whose turn comes to nothing keeps no other from sending.
func TestAPortWithNothingToSendHoldsNoOtherUp(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{})
	idle := &peer{world: w, t: t, now: 1e9}
	idle.attach(&scripted{target: target{serving: true}})
	idle.posts(abi.OpWrite, 8)
	idle.allSent()
	second := w.engines[0].NewPort(netip.MustParseAddr("10.0.0.5"), 1500, nil).(*roce.Port)
	conn := second.Open(0, transport.Way{Peer: w.ports[1].Addr}, nil).(*roce.Conn)
	attach(t, conn, &scripted{target: target{serving: true}}, 33, 34)
	idle.acks(100) // which has it look whether there is more
	if _, err := conn.Issue(1e9, &transport.Request{Length: 8, WQE: abi.SendWQE{Opcode: abi.OpWrite}}); err != nil {
		t.Fatal(err)
	}
	if n, from := w.engines[0].Transmit(1e9, w.packet[:]); n == 0 || from != second {
		t.Errorf("%d bytes of %p, want some of %p", n, from, second)
	}
	if n, from := w.engines[0].Transmit(1e9, w.packet[:]); n != 0 || from != nil {
		t.Errorf("%d bytes of %p behind that", n, from)
	}
	if s := w.ports[0].Stats(); s.Sent != 1 {
		t.Errorf("%+v", s)
	}
}

// TestGuaranteedTrafficIsSentFirst: a function that uses no more than what is guaranteed to it sends before
// others.
func TestGuaranteedTrafficIsSentFirst(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{})
	nic := credit.New(nil, credit.NoLimit())
	guaranteed := credit.New(nic, credit.NoLimit())
	if err := guaranteed.Guarantee(credit.Cost{credit.ReqPktTx: 100, credit.ReqBufTx: 10_000}); err != nil {
		t.Fatal(err)
	}
	others := newFlood(t, w.engines[0], "10.0.1.1", 1, 1, credit.New(nic, credit.NoLimit()))
	own := newFlood(t, w.engines[0], "10.0.1.2", 1, 1, guaranteed)
	issue := func(f *flood, packets int) {
		for range packets {
			r := &f.requests[0]
			if r.Issued || r.Length == 0 {
				*r = transport.Request{Length: 1 << 30, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
			}
			if _, err := f.conns[0].Issue(1e9, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue(others, 20)
	issue(own, 20)
	for i := range 40 {
		if _, from := w.engines[0].Transmit(1e9, w.packet[:]); (from == own.port) != (i < 20) {
			t.Errorf("packet %d is the other's", i)
		}
	}
}

func TestOperatorsSeeTheStateOfEachConnection(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{})
	conns := map[uint32]*peer{}
	for _, qpn := range []uint32{40, 10, 30, 20} {
		p := &peer{world: w, t: t, now: 1e9}
		p.attach(&scripted{target: target{serving: true}}, func(x *transport.Terms) { x.QPN, x.Peer = qpn, qpn+1 })
		conns[qpn] = p
	}
	conns[20].posts(abi.OpWrite, 8)
	conns[20].allSent()
	conns[20].naks(100, ib.SynAccess)       // its own request failed
	conns[30].asks(ib.SendMiddle, 100, 256) // the peer's failed
	conns[40].conn.Drain(1e9)
	want := []transport.PortConn{
		{QPN: 10, Peer: 11, State: "ESTABLISHED"},
		{QPN: 20, Peer: 21, State: "FAILED"},
		{QPN: 30, Peer: 31, State: "FAILED"},
		{QPN: 40, Peer: 41, State: "PARTING"},
	}
	got := w.ports[0].Conns()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		want[i].At, want[i].MTU, want[i].Window = w.ports[1].Addr, segment, got[i].Window
		if got[i] != want[i] || got[i].Window == 0 {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}

// TestAReconnectedQueuePairUsesItsNewConnection: when a queue pair is connected again, its packets go to the new connection.
// The end of the old connection does not affect it.
func TestAReconnectedQueuePairUsesItsNewConnection(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	old := p.conn
	e := &scripted{target: target{serving: true}}
	p.attach(e)
	old.Close(p.now)
	old.Drain(p.now)
	p.now += 2e9
	p.allSent()
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("the new one", ack(0))
	if len(e.packets) != 1 {
		t.Errorf("%d packets placed", len(e.packets))
	}
}

// flood is a port whose connections always have WRITEs to send.
type flood struct {
	port     *roce.Port
	conns    []*roce.Conn
	requests []transport.Request
	sent     int // bytes
}

// newFlood makes one with some connections. credits is the function's share of the NIC's.
func newFlood(t *testing.T, e *roce.Engine, addr string, weight, conns int, credits *credit.Node) *flood {
	t.Helper()
	f := &flood{port: e.NewPort(netip.MustParseAddr(addr), 1500, nil).(*roce.Port), requests: make([]transport.Request, conns)}
	f.port.SetWeight(weight)
	for i := range conns {
		c := f.port.Open(0, transport.Way{Peer: netip.MustParseAddr("10.0.0.9")}, credits).(*roce.Conn)
		attachMTU(t, c, &target{serving: true}, uint32(100+i), uint32(200+i), 1024)
		f.conns = append(f.conns, c)
	}
	return f
}

// refill has every connection issue as much as it may.
func (f *flood) refill(t *testing.T, now transport.Time) {
	for i, c := range f.conns {
		for {
			r := &f.requests[i]
			if r.Issued || r.Length == 0 {
				*r = transport.Request{Length: 1 << 30, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
			}
			if _, err := c.Issue(now, r); err == transport.ErrFailed {
				t.Fatal(r.Status)
			} else if err != nil {
				break
			}
		}
	}
}

// TestFunctionsShareTheLineByWeight: what functions send is shared by their weights, however many connections they have.
func TestFunctionsShareTheLineByWeight(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{})
	e := w.engines[0]
	floods := []*flood{newFlood(t, e, "10.0.1.1", 1, 8, nil), newFlood(t, e, "10.0.1.2", 3, 4, nil)}
	by := map[transport.Port]*flood{}
	for _, f := range floods {
		by[f.port] = f
		f.refill(t, 1e9)
	}
	for range 160 { // no connection gets to the end of its window
		n, from := e.Transmit(1e9, w.packet[:])
		if n == 0 {
			t.Fatal("nothing to send")
		}
		by[from].sent += n
	}
	if share := float64(floods[1].sent) / float64(floods[0].sent); share < 2.7 || share > 3.3 {
		t.Errorf("%d and %d bytes: %.2f times, want 3", floods[0].sent, floods[1].sent, share)
	}
}

// TestThePortsCountersMatchThePacketsOnTheWire: the ports' counters match the packets on the wire:
// those sent each way, repeated requests, marks and the notifications that follow them.
func TestThePortsCountersMatchThePacketsOnTheWire(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newWorld(3, v6, 1500, sim.Impairment{Delay: 20e3, Loss: 0.02})
		from, to := w.connect(0), w.connect(1)
		attach(t, from, &target{serving: true}, 17, 18)
		attach(t, to, &sink{}, 18, 17)
		var sent, marked, cnps [2]uint64
		again, seen := uint64(0), map[wire.PSN]bool{}
		w.sees = func(i int, packet []byte) {
			sent[i]++
			var h wire.Headers
			_, part, err := wire.Parse(packet)
			if err == nil {
				_, err = h.Parse(part)
			}
			switch {
			case err != nil:
				t.Error(err)
			case h.BTH.Opcode == wire.CNP:
				cnps[i]++
			case i == 0 && seen[h.BTH.PSN]:
				again++
			case i == 0:
				seen[h.BTH.PSN] = true
			}
			if i == 0 && sent[0]%40 == 0 {
				mark(packet)
				marked[0]++
			}
		}
		now := transport.Time(1e9)
		for range 50 {
			r := transport.Request{Length: 4096, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
			for !r.Issued || r.Pending > 0 {
				if !r.Issued {
					if _, err := from.Issue(now, &r); err != nil {
						t.Fatal(err)
					}
				}
				if next := w.step(now); !r.Issued || r.Pending > 0 {
					now = max(now+1, next)
				}
			}
			if r.Status != abi.WCSuccess {
				t.Fatal(r.Status)
			}
		}
		for range 100 { // what is under way
			now += 1e6
			w.step(now)
		}
		var sum transport.PortStats
		for i, p := range w.ports {
			s := p.Stats()
			sum.Add(&s)
			if lost := w.links[1-i].Stats().Lost; s.Sent != sent[i] || s.Received != sent[1-i]-lost || s.Wrong+s.Strange+s.Refused != 0 {
				t.Errorf("port %d: %+v; on the wire %d and %d, %d of them lost", i, s, sent[i], sent[1-i], lost)
			}
		}
		if a, b := w.ports[0].Stats(), w.ports[1].Stats(); a.Again != again || again == 0 || a.Missing+a.Timeouts == 0 || b.Again != 0 {
			t.Errorf("%d requests sent again, counted %+v and %+v", again, a, b)
		}
		a, b := w.ports[0].Stats(), w.ports[1].Stats()
		if b.CNPsSent != cnps[1] || cnps[1] == 0 || a.CNPs == 0 || a.CNPs > cnps[1] || a.CNPsSent+b.CNPs+a.Marked != 0 || b.Marked == 0 || b.Marked > marked[0] {
			t.Errorf("%d marked, %d notifications, counted %+v and %+v", marked[0], cnps[1], a, b)
		}
		if want := (transport.PortStats{
			Received: a.Received + b.Received, Sent: a.Sent + b.Sent, Again: a.Again, Timeouts: a.Timeouts, Missing: a.Missing, Marked: b.Marked, CNPs: a.CNPs, CNPsSent: b.CNPsSent,
		}); sum != want {
			t.Errorf("sum %+v, want %+v", sum, want)
		}
	}
}

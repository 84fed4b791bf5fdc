package falcon_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
)

var draw = flag.Bool("draw", false, "log the packets of every test as a sequence diagram, not of failed tests alone")

// testProfile is the hardware profile with constant congestion control, so that a test controls
// everything that it checks.
func testProfile() falcon.Profile {
	p := falcon.Hardware()
	p.CC, p.RUE = fixed(32, 64), rue.Immediate()
	p.OpGap = 0
	p.ARFcwnd, p.ARPercent = 0, 0
	p.RACK, p.Probe, p.ScanAll, p.OWNBypass, p.DataOWNSlack = false, falcon.ProbeNone, false, true, 64
	return p
}

// fixed is congestion control with constant windows and an RTO of 1 ms.
func fixed(fcwnd float64, ncwnd uint32) cc.Algorithm {
	return cc.Fixed{Fcwnd: uint32(fcwnd * 1024), Ncwnd: ncwnd, RTO: 7630}
}

func connConfig(ordered bool) falcon.ConnConfig {
	return falcon.ConnConfig{
		LocalCID: 0x100001, RemoteCID: 0x200002, LocalFunction: 0x010001, RemoteFunction: 0x020002,
		Protocol: wire.ProtocolRDMA, Ordered: ordered, MTU: 4200,
		TxDataPSN: 300, TxReqPSN: 100, RxDataPSN: 200, RxReqPSN: 500, TxRSN: 1, RxRSN: 7,
	}
}

// pair is a World with one connection and recording ULPs.
type pair struct {
	*sim.World
	t      *testing.T
	ulp    [2]*sim.ULP
	a, b   *falcon.Conn
	ae, be *falcon.Engine
}

type pairOption func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, imp *sim.Impairment)

func newPair(t *testing.T, opts ...pairOption) *pair {
	t.Helper()
	cfg := [2]falcon.Config{{Profile: testProfile()}, {Profile: testProfile()}}
	conn := connConfig(true)
	imp := sim.Impairment{Delay: 5 * us}
	for _, o := range opts {
		o(&cfg, &conn, &imp)
	}
	p := &pair{t: t, ulp: [2]*sim.ULP{{Record: true}, {Record: true}}}
	p.World = sim.NewWorld(1, cfg, [2]sim.Handler{p.ulp[0], p.ulp[1]}, imp)
	p.Tracing = true
	p.Now = 1000 * us
	var err error
	if p.a, p.b, err = p.Connect(conn); err != nil {
		t.Fatal(err)
	}
	p.ae, p.be = p.Nodes[0].Engine, p.Nodes[1].Engine
	t.Cleanup(func() {
		if t.Failed() || *draw {
			t.Logf("packets of this test (Mermaid):\n%s", p.Sequence())
		}
	})
	return p
}

// push issues pushes with the given tags.
func (p *pair) push(c *falcon.Conn, length int, tags ...uint64) {
	p.t.Helper()
	for _, tag := range tags {
		if err := c.Push(p.Now, tag, length); err != nil {
			p.t.Fatalf("push %d: %v", tag, err)
		}
	}
}

func (p *pair) pull(c *falcon.Conn, respLen int, tags ...uint64) {
	p.t.Helper()
	for _, tag := range tags {
		if err := c.Pull(p.Now, tag, 44, respLen); err != nil {
			p.t.Fatalf("pull %d: %v", tag, err)
		}
	}
}

// run lets d pass.
func (p *pair) run(d falcon.Time) { p.Run(p.Now+d, nil) }

// dropNth drops the n-th packet, from 1, of the type sent by a node.
func (p *pair) dropNth(from int, typ wire.PacketType, nth ...int) {
	seen := 0
	prev := p.Filter
	p.Filter = func(f int, b []byte) sim.Verdict {
		if prev != nil {
			if v := prev(f, b); v.Drop {
				return v
			}
		}
		if t, _ := wire.Peek(b); f != from || t != typ {
			return sim.Verdict{}
		}
		seen++
		for _, n := range nth {
			if n == seen {
				return sim.Verdict{Drop: true}
			}
		}
		return sim.Verdict{}
	}
}

// delayNth holds the n-th packet of the type back.
func (p *pair) delayNth(from int, typ wire.PacketType, nth int, d falcon.Time) {
	seen := 0
	p.Filter = func(f int, b []byte) sim.Verdict {
		if t, _ := wire.Peek(b); f != from || t != typ {
			return sim.Verdict{}
		}
		if seen++; seen == nth {
			return sim.Verdict{Delay: d}
		}
		return sim.Verdict{}
	}
}

// sent returns the types of the packets sent by a node, in order.
func (p *pair) sent(from int) (types []wire.PacketType) {
	for _, s := range p.Trace {
		if s.From == from {
			types = append(types, s.Type)
		}
	}
	return types
}

func (p *pair) packets(from int, typ wire.PacketType) (out []sim.Sent) {
	for _, s := range p.Trace {
		if s.From == from && s.Type == typ {
			out = append(out, s)
		}
	}
	return out
}

func (p *pair) events(node int, kind falcon.EventKind) (out []sim.Recorded) {
	for _, e := range p.ulp[node].Events {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// tags of events of a kind.
func (p *pair) tags(node int, kind falcon.EventKind) (out []uint64) {
	for _, e := range p.events(node, kind) {
		out = append(out, e.Tag)
	}
	return out
}

// keys of the payloads delivered.
func (p *pair) keys(node int, kind falcon.EventKind) (out []uint64) {
	for _, e := range p.events(node, kind) {
		out = append(out, e.Key)
	}
	return out
}

func (p *pair) wantTags(node int, kind falcon.EventKind, want ...uint64) {
	p.t.Helper()
	equal(p.t, kind.String()+" tags", p.tags(node, kind), want)
	for _, e := range p.events(node, kind) {
		if e.Code != falcon.CmplAck {
			p.t.Errorf("%v tag %d: completion %v", kind, e.Tag, e.Code)
		}
	}
}

func (p *pair) wantKeys(node int, kind falcon.EventKind, want ...uint64) {
	p.t.Helper()
	equal(p.t, kind.String()+" keys", p.keys(node, kind), want)
}

// wantIdle checks that nothing is left anywhere.
func (p *pair) wantIdle() {
	p.t.Helper()
	for i, e := range []*falcon.Engine{p.ae, p.be} {
		s := e.Stats()
		if s.TxContexts != 0 || s.RxContexts != 0 || s.RxCells != 0 || s.CreditErrors != 0 {
			p.t.Errorf("node %d: %d tx contexts, %d rx contexts, %d cells, %d credit errors left", i, s.TxContexts, s.RxContexts, s.RxCells, s.CreditErrors)
		}
	}
	for i, c := range []*falcon.Conn{p.a, p.b} {
		if n := c.Info(); n.Outstanding != 0 || n.RequestsInFlight != 0 || n.DataInFlight != 0 || n.TargetTransaction != 0 {
			p.t.Errorf("node %d: connection not idle: %+v", i, n)
		}
	}
	for i, u := range p.ulp {
		if u.Corrupt != 0 {
			p.t.Errorf("node %d: %d corrupt payloads", i, u.Corrupt)
		}
	}
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: got %v, want %v", what, got, want)
			return
		}
	}
}

func header(t *testing.T, b []byte) wire.Header {
	t.Helper()
	h, d := wire.ParseHeader(b)
	if d != wire.DropNone {
		t.Fatalf("parse header: %v", d)
	}
	return h
}

func ack(t *testing.T, b []byte) wire.Ack {
	t.Helper()
	a, d := wire.ParseAck(b)
	if d != wire.DropNone {
		t.Fatalf("parse ACK: %v", d)
	}
	return a
}

// wantSequence compares the packets with a drawing.
func (p *pair) wantSequence(file string) {
	p.t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	if got := p.Sequence(); got != string(want) {
		p.t.Errorf("%s shows another sequence:\n%s", file, want)
	}
}

func ackProfile(count int, timeout falcon.Time) falcon.Profile {
	p := testProfile()
	p.AckCount, p.AckTimeout = count, timeout
	return p
}

func noAnswer(falcon.Time, *falcon.Event, uint64) {}

func windows(fcwnd float64, ncwnd uint32) falcon.Profile {
	p := testProfile()
	p.CC = fixed(fcwnd, ncwnd)
	return p
}

// sized is a single whose engine has other sizes than the defaults.
func sized(t *testing.T, cfg falcon.Config, edit ...func(*falcon.ConnConfig)) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(cfg, s.ulp)
	conn := connConfig(true)
	for _, f := range edit {
		f(&conn)
	}
	var err error
	if s.c, err = s.e.Open(s.now, conn); err != nil {
		t.Fatal(err)
	}
	return s
}

// beside opens another connection like that of s on its engine.
func (s *single) beside(edit ...func(*falcon.ConnConfig)) *falcon.Conn {
	s.t.Helper()
	cfg := *s.c.Config()
	cfg.LocalCID++
	for _, f := range edit {
		f(&cfg)
	}
	c, err := s.e.Open(s.now, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// with makes s speak for another connection during do.
func (s *single) with(c *falcon.Conn, do func()) {
	was := s.c
	s.c = c
	do()
	s.c = was
}

// starved is a single without credits.
func starved(t *testing.T) *single {
	t.Helper()
	node := credit.New(nil, credit.NoLimit())
	node.Starve(true)
	return newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
}

// rtt20 is 20 µs in whole Falcon units.
const rtt20 = 19922

// rttProfile is a profile whose RTT is what the test says, whatever the timestamps.
func rttProfile(rtt falcon.Time) falcon.Profile {
	p := testProfile()
	p.CC = fixedRTT{fixed(256, 256).(cc.Fixed), falcon.FalconTime(rtt)}
	return p
}

type fixedRTT struct {
	cc.Fixed
	rtt uint32
}

func (c fixedRTT) Init(s *cc.State) { c.Fixed.Init(s); s.RTT = c.rtt }

func (c fixedRTT) Update(s *cc.State, _ *cc.Event) cc.Result {
	s.RTT = c.rtt
	return cc.Result{}
}

func bits(n ...uint) (b wire.Bitmap128) {
	for _, i := range n {
		if i < 64 {
			b.Lo |= 1 << i
		} else {
			b.Hi |= 1 << (i - 64)
		}
	}
	return b
}

// single is one engine whose peer is the test, packet by packet.
type single struct {
	t   *testing.T
	now falcon.Time
	e   *falcon.Engine
	c   *falcon.Conn
	ulp *sim.ULP
	buf [8192]byte
}

func newSingle(t *testing.T, profile falcon.Profile, edit ...func(*falcon.ConnConfig)) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(falcon.Config{Profile: profile}, s.ulp)
	cfg := connConfig(true)
	for _, f := range edit {
		f(&cfg)
	}
	var err error
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// header returns the header of a packet to the engine, with bases that acknowledge nothing new.
func (s *single) header(typ wire.PacketType, psn, rsn uint32, ar bool) wire.Header {
	cfg := s.c.Config()
	return wire.Header{
		CID: cfg.LocalCID, Function: cfg.LocalFunction, Protocol: cfg.Protocol, Type: typ, AckReq: ar,
		DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, PSN: psn, RSN: rsn,
	}
}

// receive gives a packet to the engine and its events to the ULP.
func (s *single) receive(b []byte) wire.Drop {
	d := s.e.Receive(s.now, falcon.Packet{T1: falcon.FalconTime(s.now - 5*us), Data: b})
	s.drain()
	return d
}

func (s *single) drain() {
	var ev falcon.Event
	for s.e.Next(&ev) {
		s.ulp.HandleEvent(s.now, &ev)
	}
}

func (s *single) pushData(psn, rsn uint32, ar bool) wire.Drop {
	p := wire.PushData{Header: s.header(wire.TypePushData, psn, rsn, ar), RequestLength: 32}
	b := p.Append(nil)
	payload := make([]byte, 32)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(b, payload...))
}

func (s *single) pullRequest(psn, rsn uint32, ar bool) wire.Drop {
	p := wire.PullRequest{Header: s.header(wire.TypePullRequest, psn, rsn, ar), RequestLength: 64}
	b := p.Append(nil)
	payload := make([]byte, 44)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(b, payload...))
}

func (s *single) pullData(psn, rsn uint32, length int) wire.Drop {
	h := s.header(wire.TypePullData, psn, rsn, false)
	payload := make([]byte, length)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(h.Append(nil), payload...))
}

func (s *single) resync(psn, rsn uint32, original wire.PacketType) wire.Drop {
	r := wire.Resync{Header: s.header(wire.TypeResync, psn, rsn, false), Code: wire.ResyncCIE, Original: original}
	return s.receive(r.Append(nil))
}

// ack gives an acknowledgement; unset bases acknowledge nothing new, and a packet of 10 µs ago is
// the last received.
func (s *single) ack(a wire.Ack) wire.Drop {
	cfg := s.c.Config()
	a.CID = cfg.LocalCID
	if a.DataBase == 0 {
		a.DataBase = cfg.TxDataPSN
	}
	if a.ReqBase == 0 {
		a.ReqBase = cfg.TxReqPSN
	}
	if a.T1 == 0 {
		a.T1, a.T2 = falcon.FalconTime(s.now-10*us), falcon.FalconTime(s.now-5*us)
	}
	return s.receive(a.Append(nil))
}

func (s *single) nack(n wire.Nack) wire.Drop {
	cfg := s.c.Config()
	n.CID, n.DataBase, n.ReqBase = cfg.LocalCID, cfg.TxDataPSN, cfg.TxReqPSN
	n.T1, n.T2 = falcon.FalconTime(s.now-10*us), falcon.FalconTime(s.now-5*us)
	return s.receive(n.Append(nil))
}

// transmit returns everything the engine sends now.
func (s *single) transmit() (out []sim.Sent) {
	for {
		n, _ := s.e.Transmit(s.now, s.buf[:])
		if n == 0 {
			return out
		}
		typ, _ := wire.Peek(s.buf[:n])
		out = append(out, sim.Sent{At: s.now, Type: typ, Packet: append([]byte(nil), s.buf[:n]...)})
	}
}

// advance lets time pass and returns everything sent meanwhile, each at its exact time.
func (s *single) advance(d falcon.Time) (out []sim.Sent) {
	end := s.now + d
	for {
		out = append(out, s.transmit()...)
		at := s.e.Deadline()
		if at > end {
			s.now = end
			s.e.Advance(s.now)
			s.drain()
			return append(out, s.transmit()...)
		}
		s.now = max(s.now, at)
		s.e.Advance(s.now)
		s.drain()
	}
}

func (s *single) push(n int) {
	s.t.Helper()
	for i := range n {
		if err := s.c.Push(s.now, uint64(i), 32); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *single) pull(n int) {
	s.t.Helper()
	for i := range n {
		if err := s.c.Pull(s.now, uint64(i), 44, 64); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *single) count(kind falcon.EventKind) (n int) {
	for _, e := range s.ulp.Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (s *single) want(got, want wire.Drop) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("drop %q, want %q", got, want)
	}
}

// only returns the packets of a type.
func only(sent []sim.Sent, typ wire.PacketType) (out []sim.Sent) {
	for _, p := range sent {
		if p.Type == typ {
			out = append(out, p)
		}
	}
	return out
}

// psns of packets with a base header.
func psns(t *testing.T, sent []sim.Sent) (out []uint32) {
	t.Helper()
	for _, p := range sent {
		if p.Type.HasBase() {
			out = append(out, header(t, p.Packet).PSN)
		}
	}
	return out
}

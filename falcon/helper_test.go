package falcon_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
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

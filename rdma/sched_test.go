package rdma

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// TestRoundRobin puts one QP with megabytes to send in front of one with a few bytes. Both get
// their turn.
func TestRoundRobin(t *testing.T) {
	p := newPair(t, true, 1<<20, worldConfig{arena: 64 << 20, config: Config{Turns: 1, TurnOps: 4, TurnBytes: 8 << 10, Quantum: 1 << 20}}, qpConfig{})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 20 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 1<<20))
	}
	for range 20 {
		a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	}
	e := p.hosts[0].e
	for _, want := range []struct{ big, small int }{{8, 0}, {8, 4}, {16, 4}, {16, 8}, {24, 8}} {
		if !e.Run(p.now) {
			t.Fatal("no more work")
		}
		big := p.a.info().Pushes
		if small := a.info().Pushes; big != want.big || small != want.small {
			t.Fatalf("%d and %d packets issued, want %d and %d", big, small, want.big, want.small)
		}
	}
	success(t, a.send.wait(20))
	success(t, p.a.send.wait(20))
}

// twoFunctions is two functions of a NIC, whose queue pairs have 20 packets to issue.
type twoFunctions struct{ *pair }

func newTwoFunctions(t *testing.T) twoFunctions {
	p := loopPair(t, worldConfig{config: Config{Turns: 1, TurnOps: 4, TurnBytes: 8 << 10, Quantum: 8 << 10}}, qpConfig{})
	p.step() // nobody waits for a turn any more
	return twoFunctions{p}
}

func (f twoFunctions) post(q *qp, from, to *region) {
	for range 20 {
		q.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: to.addr, RKey: to.key}, from.sge(0, pathMTU))
	}
}

// run returns how much each function issues in one Run.
func (f twoFunctions) run() (issued [2]uint64) {
	f.t.Helper()
	before := [2]uint64{f.hosts[0].fn.Stats().PushesTx, f.hosts[1].fn.Stats().PushesTx}
	if !f.hosts[0].e.Run(f.now) {
		f.t.Fatal("no more work")
	}
	for i, h := range f.hosts {
		issued[i] = h.fn.Stats().PushesTx - before[i]
	}
	return issued
}

// TestFunctionsTakeTurns: of two functions of a NIC each issues a quantum in its turn, though both
// have more.
func TestFunctionsTakeTurns(t *testing.T) {
	f := newTwoFunctions(t)
	f.post(f.a, f.ma, f.mb)
	f.post(f.b, f.mb, f.ma)
	for i, want := range [][2]uint64{{4, 0}, {2, 0}, {0, 4}, {0, 2}} {
		if got := f.run(); got != want {
			t.Errorf("run %d: packets issued %v, want %v", i, got, want)
		}
	}
	success(t, f.a.send.wait(20))
	success(t, f.b.send.wait(20))
}

// TestGuaranteedFunctionGoesFirst: a function that has not used up its guarantee does not wait for
// another's turn to end. Once it has, it waits.
func TestGuaranteedFunctionGoesFirst(t *testing.T) {
	f := newTwoFunctions(t)
	node := credit.New(credit.New(nil, credit.NoLimit()), credit.NoLimit())
	if err := node.Guarantee(credit.Cost{credit.ReqPktTx: 1}); err != nil {
		t.Fatal(err)
	}
	f.hosts[1].fn.UseCredits(node)
	f.post(f.a, f.ma, f.mb)
	got := [][2]uint64{f.run()}
	f.post(f.b, f.mb, f.ma)
	got = append(got, f.run())
	node.TakeOne(credit.ReqPktTx, false)
	got = append(got, f.run(), f.run())
	if want := [][2]uint64{{4, 0}, {0, 4}, {0, 2}, {2, 0}}; !slices.Equal(got, want) {
		t.Errorf("packets issued %v, want %v", got, want)
	}
	success(t, f.a.send.wait(20))
	success(t, f.b.send.wait(20))
}

// TestEventIndex posts with a driver that rings only when the event index asks for it: no request
// is left behind.
func TestEventIndex(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{log2: 4, sigAll: true})
	bells, done := 0, 0
	x := p.remote(abi.OpWrite, 0)
	x.NumSGE = 1
	entry := make([]byte, 512)
	x.Marshal(entry)
	s := p.ma.sge(0, 100)
	s.Marshal(entry[abi.SendWQEHeader:])
	for posted := range 1000 {
		if err := p.a.sq.Push(entry); err != nil {
			t.Fatal(err)
		}
		_, need, err := p.a.sq.Publish()
		if err != nil {
			t.Fatal(err)
		}
		if need {
			bells++
			p.a.ring()
		}
		switch posted % 7 {
		case 0, 3:
			p.hosts[0].e.Run(p.now)
		case 5, 6:
			p.settle(falcon.Time(posted) * 100)
		}
		for p.a.send.drop() {
			done++
		}
		if posted-done > 10 {
			done += len(p.a.send.wait(posted - done))
		}
	}
	success(t, p.a.send.wait(1000-done))
	if bells == 0 || bells > 900 {
		t.Errorf("%d doorbells for 1000 requests", bells)
	}
}

// TestPullFlood lets a peer ask for more READs at once than a QP serves, by never acknowledging
// responses. They are deferred, and all are answered in the end.
func TestPullFlood(t *testing.T) {
	raw := &readsULP{}
	w := newWorld(t, worldConfig{peer: raw})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 4096, allAccess)
	b := h.createQP(pd, qpConfig{})
	raw.qpn, raw.va, raw.key = b.number, m.addr, m.key
	open := func(fe *falcon.Engine, local, remote falcon.CID, lf, rf uint32) *falcon.Conn {
		c, err := fe.Open(w.now, falcon.ConnConfig{
			LocalCID: local, RemoteCID: remote, LocalFunction: lf, RemoteFunction: rf,
			Protocol: falconwire.ProtocolRDMA, MTU: 2048,
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	attacker := open(w.hosts[0].fe, 1, 2, 1, 2)
	conn := serves255{h.rof().Over(open(h.fe, 2, 1, 2, 1))} // the attacker was told that it may
	ok(t, b.q.Connect(w.now, conn, 9, pathMTU, [16]byte{}))
	dropping := true
	w.sim.Filter = func(from int, p []byte) sim.Verdict {
		typ, _ := falconwire.Peek(p)
		return sim.Verdict{Drop: dropping && from == 1 && typ == falconwire.TypePullData}
	}
	const n = 200
	for i := range n {
		for attacker.Pull(w.now, uint64(i), wire.ReadRequest.HeaderLen(), wire.PullLength(wire.ReadRequest, 8)) != nil {
			w.settle(1e6)
		}
		w.settle(1e5)
	}
	w.settle(5e6)
	if s := h.fn.Stats(); s.PullsDeferred == 0 || s.PullsRx > 128 {
		t.Fatalf("%d READs taken, %d told to wait", s.PullsRx, s.PullsDeferred)
	}
	dropping = false
	w.run(20e9, func() bool { return raw.done == n })
	if raw.bad != 0 || b.q.State() != abi.QPStateRTS {
		t.Fatalf("%d READs failed, QP in %v", raw.bad, b.q.State())
	}
}

// readsULP asks for 8 bytes with every pull; the tag is the sequence number less one.
type readsULP struct {
	qpn, key  uint32
	va        uint64
	done, bad int
}

func (u *readsULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	h := wire.Headers{
		RBTH: wire.RBTH{Opcode: wire.ReadRequest, DestQP: u.qpn, SN: uint32(tag) + 1},
		RETH: wire.RETH{VA: u.va, RKey: u.key, Length: 8}, SETH: wire.SETH{RMSN: uint32(tag) + 1},
	}
	return len(h.Append(dst[:0])), nil
}

func (u *readsULP) HandleEvent(_ falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPullDone {
		u.done++
		if ev.Code != falcon.CmplAck || len(ev.Data) != 32 {
			u.bad++
		}
	}
}

// serves255 lets the peer have more READs unanswered than a queue pair allows.
type serves255 struct{ transport.Conn }

func (c serves255) Attach(t *transport.Terms) (segment int, ok bool) {
	t.Serves = 255
	return c.Conn.Attach(t)
}

func TestRetryTime(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	if got := p.a.q.RetryTime(); got != 0 {
		t.Errorf("driver set nothing: %d", got)
	}
	for _, c := range []struct {
		timeout, retry uint8
		want           falcon.Time
	}{{0, 7, falcon.Forever}, {31, 7, 8 * 4096 << 31}, {18, 7, 8 * 4096 << 18}, {1, 0, 500e6}} {
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrTimeout | abi.QPAttrRetryCnt, Timeout: c.timeout, RetryCnt: c.retry})
		if got := p.a.q.RetryTime(); got != c.want {
			t.Errorf("timeout %d, retry %d: %d, want %d", c.timeout, c.retry, got, c.want)
		}
	}
}

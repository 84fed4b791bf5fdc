package rdma

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// cases are the numbered behaviours of this room: each has at least one test called
// TestCase<number>_….
var cases = []int{22, 68, 97, 98, 99, 102, 103, 104, 106}

// TestEveryNumberedCaseHasATest fails when a numbered test goes missing, or has no number here.
func TestEveryNumberedCaseHasATest(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil || f.IsDir() {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func TestCase(\d+)_\w+\(t \*testing\.T\)`).FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			if found[n] = true; !slices.Contains(cases, n) {
				t.Errorf("case %d is not in the list", n)
			}
		}
	}
	for _, n := range cases {
		if !found[n] {
			t.Errorf("case %d has no test", n)
		}
	}
}

// TestCase22_ZeroLengthPullData: a READ that the target completes in error ends in error, and the
// queue pair goes on.
func TestCase22_ZeroLengthPullData(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{cie: true})
	x := p.remote(abi.OpRead, 0)
	x.RKey ^= 1
	p.a.post(x, p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRemAccessErr || got[1].Status != abi.WCSuccess || p.a.q.State() != abi.QPStateRTS {
		t.Fatalf("completions %s, QP in %v", describe(got), p.a.q.State())
	}
}

// TestCase97_ScatterGatherAndInline: lists up to 16 elements and inline data up to 224 bytes arrive
// whole; more is refused.
func TestCase97_ScatterGatherAndInline(t *testing.T) {
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{sge: 16, inline: 224})
	fill(p.ma.bytes(), 97)
	for n := 1; n <= 16; n++ {
		list, total := []abi.SGE{}, 0
		for i := range n {
			list = append(list, p.ma.sge(i*3000+i, 1+i*137))
			total += 1 + i*137
		}
		p.b.receive(uint64(n), split(p.mb, 100, total, n)...)
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, list...)
		success(t, p.a.send.wait(1))
		success(t, p.b.recv.wait(1))
		at := 100
		for _, s := range list {
			if string(p.mb.bytes()[at:at+int(s.Length)]) != string(p.hosts[0].bytes(s.Addr, int(s.Length))) {
				t.Fatalf("%d elements: wrong bytes", n)
			}
			at += int(s.Length)
		}
	}
	for _, n := range []int{0, 1, 3, 64, 223, 224} {
		data := make([]byte, n)
		fill(data, uint64(n))
		p.a.postInline(p.remote(abi.OpWrite, 5), data)
		success(t, p.a.send.wait(1))
		if string(p.mb.bytes()[5:5+n]) != string(data) {
			t.Fatalf("%d inline bytes: wrong", n)
		}
	}
	x := p.remote(abi.OpWrite, 0)
	x.Flags, x.InlineLen = abi.SendInline, 225
	p.a.postRaw(x, nil)
	p.a.ring()
	if st := p.a.send.wait(1)[0].Status; st != abi.WCLocLenErr {
		t.Fatalf("225 inline bytes: %v", st)
	}
	p = newPair(t, true, 4096, worldConfig{}, qpConfig{sge: 16})
	x = p.remote(abi.OpWrite, 0)
	x.NumSGE = 17
	p.a.post(x, p.ma.sge(0, 1))
	if st := p.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
		t.Fatalf("17 elements: %v", st)
	}
}

// TestCase98_Completions: in order, or in the order of arrival.
func TestCase98_Completions(t *testing.T) { TestOnlyUnorderedModeCompletesOutOfOrder(t) }

// TestCase99_TargetEffects: what receives, READs and WRITEs do at the target.
func TestCase99_TargetEffects(t *testing.T) {
	t.Run("receive", TestSendsOfAllSizes)
	t.Run("READ", TestReadsOfAllSizes)
	t.Run("WRITE", TestWritesOfAllSizes)
}

// TestCase102_CreditExhaustion runs with very little of each of the six credits: requests wait for
// it, all finish, all of it comes back.
func TestCase102_CreditExhaustion(t *testing.T) {
	for kind := range 6 {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			limit := credit.NoLimit()
			limit[kind] = 2
			if kind == int(credit.ReqBufTx) || kind == int(credit.ReqBufRx) || kind == int(credit.DataBufTx) {
				limit[kind] = 24 // of one packet and a bit
			}
			p := newPair(t, true, 1<<16, worldConfig{credit: limit}, qpConfig{})
			for i := range 10 {
				for _, q := range []*qp{p.a, p.b} {
					mine, other := p.ma, p.mb
					if q == p.b {
						mine, other = other, mine
					}
					op := []abi.Opcode{abi.OpWrite, abi.OpRead}[i%2]
					q.post(abi.SendWQE{Opcode: op, Flags: abi.SendSignaled, RemoteAddr: other.addr, RKey: other.key}, mine.sge(32<<10, 5000))
				}
			}
			success(t, p.a.send.wait(10))
			success(t, p.b.send.wait(10))
			p.settle(1e9)
			for i, h := range p.hosts {
				if u := h.credits.InUse(); u != (credit.Cost{}) {
					t.Errorf("host %d: credits in use %v", i, u)
				}
			}
		})
	}
}

// TestCase103_Turns: queue pairs take turns.
func TestCase103_Turns(t *testing.T) { TestQueuePairsTakeTurns(t) }

// TestCase104_ImmediateInvalidateSequence: a WRITE with immediate takes one receive, by its SETH; a
// SEND with invalidate ends a key; a gap in the sequence of an ordered connection is an error.
func TestCase104_ImmediateInvalidateSequence(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	for i := range 3 {
		p.b.receive(uint64(i), p.mb.sge(0, 8))
	}
	for i := range 3 {
		x := p.remote(abi.OpWriteImm, 100)
		x.Imm = uint32(i)
		p.a.post(x, p.ma.sge(0, 3000))
	}
	success(t, p.a.send.wait(3))
	for i, c := range p.b.recv.wait(3) {
		if c.WRID != uint64(i) || c.Imm != uint32(i) || c.Opcode != abi.WCOpRecvWriteImm || c.ByteLen != 3000 {
			t.Fatalf("receive %d: %+v", i, c)
		}
	}
	t.Run("invalidate", TestASendInvalidatesAKey)
	t.Run("gap", TestASequenceGapIsAnErrorOnlyInOrder)
}

// TestCase106_SizeLimits: unordered mode refuses long messages that take a receive, and datagrams
// are of one packet.
func TestCase106_SizeLimits(t *testing.T) {
	TestSizeLimitsOfUnorderedMode(t)
	t.Run("datagrams", TestABadDatagramMovesItsQueuePairToSQE)
}

// watcher sees every event of one side and holds it to the contract of RDMA over Falcon §6.8.
type watcher struct {
	t       *testing.T
	e       *Engine
	ordered bool
	taken   map[uint32]bool // requests delivered and not to come again
	next    uint32          // on an ordered connection
	started bool
	done    map[uint32]bool // transactions of this side that completed, by RSN
	pushes  int             // requests delivered
}

func (w *watcher) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	return Wire[*rof.Engine](w.e).Fill(c, kind, tag, dst)
}

func (w *watcher) HandleEvent(now falcon.Time, ev *falcon.Event) {
	switch ev.Kind {
	case falcon.EvPush, falcon.EvPull:
		w.pushes++
		if w.taken[ev.RSN] {
			w.t.Errorf("RSN %d delivered twice", ev.RSN)
		}
		if w.ordered {
			if w.started && ev.RSN != w.next {
				w.t.Errorf("RSN %d delivered where %d was due", ev.RSN, w.next)
			}
			w.started, w.next = true, ev.RSN+1
		}
		again := func() uint64 { st := w.e.Stats(); return st.RNRTx + st.PullsDeferred }
		before := again()
		Wire[*rof.Engine](w.e).HandleEvent(now, ev)
		if again() == before {
			w.taken[ev.RSN] = true
		} else {
			w.next = ev.RSN // it will come again
		}
		return
	case falcon.EvPushDone, falcon.EvPullDone:
		if ev.Code != falcon.CmplAck || w.done[ev.RSN] {
			w.t.Errorf("transaction of RSN %d: %v, completed before: %t", ev.RSN, ev.Code, w.done[ev.RSN])
		}
		w.done[ev.RSN] = true
	}
	Wire[*rof.Engine](w.e).HandleEvent(now, ev)
}

// TestContract_AtMostOnceInOrder checks both sides against RDMA over Falcon §6.8 while the link
// loses, repeats and reorders: a request is delivered at most once (1), a transaction completes
// once (2), and an ordered connection keeps the order (3).
func TestContract_AtMostOnceInOrder(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		var side [2]*watcher
		p := newPair(t, ordered, 64<<10, worldConfig{
			seed: 7, net: sim.Impairment{Delay: 20e3, Jitter: 40e3, Loss: 0.05, Duplicate: 0.1, Reorder: 0.2, ReorderDelay: 200e3},
			watch: func(i int, e *Engine) sim.Handler {
				side[i] = &watcher{t: t, e: e, ordered: ordered, taken: map[uint32]bool{}, done: map[uint32]bool{}}
				return side[i]
			},
		}, qpConfig{})
		for i := range 40 {
			x := p.remote([]abi.Opcode{abi.OpWrite, abi.OpRead, abi.OpSend, abi.OpFetchAdd}[i%4], 0)
			n := 3000
			if i%4 == 3 {
				n = 8
			}
			x.WRID = uint64(i)
			if i%8 == 2 {
				p.settle(3e6) // some SENDs find no receive yet
			}
			p.a.post(x, p.ma.sge(8192, n))
			if i%4 == 2 {
				p.b.receive(uint64(i), p.mb.sge(16384, 4096))
			}
		}
		for i, c := range p.a.send.wait(40) {
			if c.Status != abi.WCSuccess || c.WRID != uint64(i) {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
		if side[1].pushes < 100 {
			t.Fatalf("%d requests delivered: the test tests nothing", side[1].pushes)
		}
	})
}

// TestContract_UndeliverableIsReported: RDMA over Falcon §6.8 (1), last sentence: a packet that
// cannot be delivered at all ends in an error of the work request and an event, not in silence.
func TestContract_UndeliverableIsReported(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.cut(0, true)
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
	if got := p.a.send.wait(1)[0].Status; got != abi.WCRetryExcErr {
		t.Fatal(got)
	}
	if e := p.hosts[0].async; len(e) != 1 || e[0].typ != abi.EventQPFatal || e[0].number != p.a.number {
		t.Fatalf("events %+v", e)
	}
}

// TestCase68_RequestForOtherQP sends requests on a QP's connection that name another QP of the
// function. They get a NACK with code 8 and have no effect on either QP, and the connection's own
// QP continues (RDMA over Falcon §6.9).
func TestCase68_RequestForOtherQP(t *testing.T) {
	raw := &rawULP{}
	w := newWorld(t, worldConfig{peer: raw})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 8192, allAccess)
	own, other := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{})
	attacker := w.attack(own, true)
	for i, op := range []ib.Opcode{ib.WriteOnly, ib.SendOnly, ib.ReadRequest, ib.FetchAdd} {
		x := wire.Headers{
			RBTH: wire.RBTH{Opcode: op, DestQP: other.number, SN: 1},
			Extended: ib.Extended{
				RETH:   ib.RETH{VA: m.addr, RKey: m.key},
				Atomic: ib.AtomicETH{VA: m.addr, RKey: m.key},
				SETH:   ib.SETH{RMSN: 1},
			},
		}
		raw.send = x.Append(nil)
		var err error
		if op.Info().Kind == ib.KindData {
			err = attacker.Push(w.now, 1, len(raw.send))
		} else {
			err = attacker.Pull(w.now, 1, len(raw.send), 64)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.settle(1e9)
		if n := h.fn.Stats().CIDMismatches; n != uint64(i+1) {
			t.Fatalf("%v: %d mismatches", op, n)
		}
	}
	if n := w.sim.Nodes[0].Engine.Stats().NacksReceived; n < 4 {
		t.Errorf("%d NACKs", n)
	}
	if own.q.State() != abi.QPStateRTS || other.q.State() != abi.QPStateInit || len(h.async) != 0 {
		t.Errorf("QPs in %v and %v, events %+v", own.q.State(), other.q.State(), h.async)
	}
	x := wire.Headers{RBTH: wire.RBTH{Opcode: ib.WriteOnly, DestQP: own.number, SN: 1}, Extended: ib.Extended{RETH: ib.RETH{VA: m.addr, RKey: m.key, Length: 4}}}
	raw.send = append(x.Append(nil), 1, 2, 3, 4)
	if err := attacker.Push(w.now, 2, len(raw.send)); err != nil {
		t.Fatal(err)
	}
	w.settle(1e9)
	if m.bytes()[3] != 4 {
		t.Error("the connection's own QP does not go on")
	}
}

// answerer answers READs with a response for a QP of its choice, its number off by skew.
type answerer struct {
	dest uint32
	sn   uint32
	skew uint32
}

func (a *answerer) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	h := wire.Headers{RBTH: wire.RBTH{Opcode: ib.ReadRespOnly, DestQP: a.dest, SN: a.sn + a.skew}}
	n := len(h.Append(dst[:0]))
	return n + copy(dst[n:], []byte{1, 2, 3, 4}), nil
}

func (a *answerer) HandleEvent(now falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPull {
		var h wire.Headers
		_, _ = h.Parse(ev.Data)
		a.sn = h.RBTH.SN
		_ = ev.Conn.RespondPull(now, ev.RSN, 0, wire.Opcodes[ib.ReadRespOnly].Len+4)
	}
}

// TestCase68_ResponseForOtherQP lets the peer answer a READ with a response for another QP. It is
// dropped silently, without a NACK or access to memory, and the QP continues. Its READ, which has
// no answer, fails when that is certain.
func TestCase68_ResponseForOtherQP(t *testing.T) {
	peer := &answerer{}
	w := newWorld(t, worldConfig{peer: peer})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 8192, allAccess)
	own, other := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{})
	w.attack(own, true)
	read := abi.SendWQE{WRID: 1, Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: 1, RKey: 1}
	peer.dest = own.number
	own.post(read, m.sge(0, 4))
	success(t, own.send.wait(1))
	if m.bytes()[0] != 1 {
		t.Fatal("a good response has no effect")
	}
	clear(m.bytes())
	peer.dest = other.number
	own.post(read, m.sge(0, 4))
	w.settle(1e9)
	if s := h.fn.Stats(); s.CIDMismatches != 1 || own.q.State() != abi.QPStateRTS || m.bytes()[0] != 0 || h.fe.Stats().NacksSent != 0 {
		t.Fatalf("%+v, QP in %v, %d NACKs", s, own.q.State(), h.fe.Stats().NacksSent)
	}
	if c, got := own.send.poll(); got {
		t.Fatalf("completion %+v", c)
	}
	if got := own.send.wait(1)[0].Status; got != abi.WCRespTimeoutErr {
		t.Fatal(got)
	}
}

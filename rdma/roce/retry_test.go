package roce_test

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestASlowerPeerIsAskedTwiceOnlyAtFirst: a peer that suddenly takes longer than the pause before a retry is asked twice a
// few times, until its round trip was measured, and not ever after.
func TestASlowerPeerIsAskedTwiceOnlyAtFirst(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1e6})
	from, to := w.connect(0), w.connect(1)
	attachMTU(t, from, &target{serving: true}, 17, 18, 1024)
	attachMTU(t, to, &sink{}, 18, 17, 1024)
	now := transport.Time(1e9)
	write := func() {
		t.Helper()
		r := transport.Request{Length: 100, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
		if _, err := from.Issue(now, &r); err != nil {
			t.Fatal(err)
		}
		for w.step(now); r.Pending > 0; w.step(now) {
			now = min(w.engines[0].Deadline(), w.engines[1].Deadline(), w.links[0].Deadline(), w.links[1].Deadline())
		}
		if r.Status != abi.WCSuccess {
			t.Fatal(r.Status)
		}
		now += 1e6
	}
	for range 100 {
		write()
	}
	if s := w.ports[0].Stats(); s.Timeouts != 0 {
		t.Fatalf("%d timeouts at 2 ms", s.Timeouts)
	}
	for i := range w.links {
		w.links[i] = sim.NewLink(uint64(i), sim.Impairment{Delay: 12e6})
	}
	for range 100 {
		write()
	}
	if s := w.ports[0].Stats(); s.Timeouts == 0 || s.Timeouts > 5 {
		t.Errorf("%d timeouts at 24 ms, want some at the beginning", s.Timeouts)
	}
}

// TestAnUnansweredPacketIsRetriedOnSchedule: when an unanswered packet is sent again, and when the attempts end: after four
// times verbs' timeout as far as all attempts take 2 s, after the growing pause if that is shorter,
// and never before 8 ms.
func TestAnUnansweredPacketIsRetriedOnSchedule(t *testing.T) {
	const ms = 1e6
	for _, c := range []struct {
		timeout, count uint8
		again          []transport.Time // ns after it was sent first
		end            transport.Time   // 0: never
	}{
		{14, 1, []transport.Time{100 * ms, 300 * ms}, 8 * 4096 << 14},
		{14, 0, []transport.Time{100 * ms}, 4 * 4096 << 14},
		{14, 7, []transport.Time{100 * ms, 300 * ms, 550 * ms, 800 * ms, 1050 * ms, 1300 * ms, 1550 * ms, 1800 * ms}, 2000 * ms},
		{12, 2, []transport.Time{4 * 4096 << 12, 8 * 4096 << 12}, 12 * 4096 << 12},
		{1, 1, []transport.Time{8 * ms}, 16 * ms},
		{8, 0, nil, 8 * ms},
		{9, 0, nil, 4 * 4096 << 9},
		{10, 0, nil, 4 * 4096 << 10},
		{17, 3, []transport.Time{100 * ms, 300 * ms, 700 * ms, 700*ms + 4096<<17, 700*ms + 2*4096<<17}, 4 * 4096 << 17},
		{19, 0, []transport.Time{100 * ms, 300 * ms, 700 * ms, 1500 * ms}, 4096 << 19},
		{0, 7, []transport.Time{100 * ms, 300 * ms, 700 * ms, 1500 * ms, 2500 * ms, 3500 * ms, 4500 * ms}, 0},
	} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e, func(x *transport.Terms) { x.Sending.Timeout, x.Sending.RetryCount = c.timeout, c.count })
		p.now += 5e9 // nobody waits for anything before it is sent
		begun := p.now
		p.posts(abi.OpWrite, 8)
		p.allSent()
		var again []transport.Time
		for len(e.statuses) == 0 && p.now-begun < 4e9 {
			p.now = p.engines[0].Deadline()
			if len(p.allSent()) != 0 {
				again = append(again, p.now-begun)
			}
		}
		if c.end == 0 {
			if !slices.Equal(again, c.again) || len(e.statuses) != 0 {
				t.Errorf("timeout %d: again at %d, ended %v", c.timeout, again, e.statuses)
			}
			continue
		}
		if !slices.Equal(again, c.again) || p.now-begun != c.end || !slices.Equal(e.statuses, []abi.WCStatus{abi.WCRetryExcErr}) {
			t.Errorf("timeout %d, %d times: again at %d, %v at %d", c.timeout, c.count, again, e.statuses, p.now-begun)
		}
		if s := p.ports[0].Stats(); s.Timeouts != uint64(len(c.again)) || s.Again != uint64(len(c.again)) {
			t.Errorf("timeout %d: counted %+v", c.timeout, s)
		}
	}
}

// TestTheTimeWithoutAnAnswerCountsFromTheFirstPacket: the time without an answer counts from the first packet in
// flight, whatever is sent after it, and starts again with every answer.
func TestTheTimeWithoutAnAnswerCountsFromTheFirstPacket(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e, func(x *transport.Terms) { x.Sending.Timeout, x.Sending.RetryCount = 12, 1 })
	const patience = 2 * 4 * 4096 << 12
	p.posts(abi.OpWrite, 8)
	p.allSent()
	p.now += 10e6
	p.posts(abi.OpWrite, 8)
	p.allSent()
	p.now += 5e6
	p.acks(100)
	answered := p.now
	for p.now < answered+patience-5e6 {
		p.posts(abi.OpWrite, 8)
		p.allSent()
		p.now += 5e6
	}
	p.now = answered + patience - 1
	if p.allSent(); len(e.statuses) != 1 {
		t.Fatalf("ended %v too early", e.statuses)
	}
	p.now++
	if p.allSent(); !slices.Equal(e.statuses, []abi.WCStatus{0, abi.WCRetryExcErr}) {
		t.Errorf("ended %v", e.statuses)
	}
}

// TestARequestFailsWithThePeersLastAnswer: if the peer's last answer was not-ready when the attempts end, the request
// fails with that status.
func TestARequestFailsWithThePeersLastAnswer(t *testing.T) {
	for answered, want := range map[bool]abi.WCStatus{false: abi.WCRNRRetryExcErr, true: abi.WCRetryExcErr} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		p.posts(abi.OpSend, 8)
		p.posts(abi.OpSend, 8)
		p.allSent()
		p.naks(100, ib.SynRNR|1)
		p.now += 1e6
		p.allSent()
		if answered {
			p.acks(100)
		}
		for range 210 {
			p.now += 10e6
			p.allSent()
		}
		if got := e.statuses[len(e.statuses)-1]; got != want {
			t.Errorf("answered since %t: %v, want %v", answered, got, want)
		}
	}
}

// TestWindowIsFull: exactly as many packets are in flight as the window allows; READs count with
// all their missing responses.
func TestWindowIsFull(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	for range 100 {
		p.posts(abi.OpWrite, 8)
	}
	if n := len(p.allSent()); n != cc.FirstWindow {
		t.Errorf("%d packets at first, want %d", n, cc.FirstWindow)
	}
	p.acks(100) // the window is one larger
	if at := psns(p.allSent()); !slices.Equal(at, []int{32, 33}) {
		t.Errorf("sends %v", at)
	}
	p = newPeer(t, e)
	p.posts(abi.OpRead, 20*segment)
	p.posts(abi.OpRead, 12*segment)
	p.posts(abi.OpWrite, 8)
	p.posts(abi.OpWrite, 8)
	if at := psns(p.allSent()); !slices.Equal(at, []int{0, 20}) {
		t.Errorf("sends %v", at)
	}
	p.answers(ib.ReadRespFirst, 100, ib.SynAck, 256) // one less, the window one larger
	if at := psns(p.allSent()); !slices.Equal(at, []int{32, 33}) {
		t.Errorf("sends %v behind the READs", at)
	}
	p.answers(ib.ReadRespMiddle, 102, ib.SynAck, 256) // 16 may be under way, the first READ lacks 19
	if at := psns(p.allSent()); !slices.Equal(at, []int{1}) {
		t.Errorf("sends %v again", at)
	}
	p.answers(ib.ReadRespMiddle, 101, ib.SynAck, 256)
	for i := 2; i < 19; i++ {
		p.answers(ib.ReadRespMiddle, 100+i, ib.SynAck, 256)
	}
	if at := psns(p.allSent()); !slices.Equal(at, []int{20, 32, 33}) {
		t.Errorf("sends %v again", at)
	}
}

// TestAnswersAfterARewindDoNotEnlargeTheWindow: answers that come after a rewind do not enlarge the window.
func TestAnswersAfterARewindDoNotEnlargeTheWindow(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.posts(abi.OpRead, 4*segment)
	for range 100 {
		p.posts(abi.OpWrite, 8)
	}
	p.allSent()
	p.naks(100, ib.SynSequence) // half the window
	p.answers(ib.ReadRespFirst, 100, ib.SynAck, 256)
	p.answers(ib.ReadRespMiddle, 101, ib.SynAck, 256)
	if at := psns(p.allSent()); len(at) != 1+cc.FirstWindow/2-2 || at[0] != 2 {
		t.Errorf("sends %v, of which the READ stands for two", at)
	}
}

// TestALongReadIsAskedForInParts: a long READ is asked for in parts of as many packets as the window has, 64 at
// most.
func TestALongReadIsAskedForInParts(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	lengths := func(n int) (list []int) {
		t.Helper()
		r := &transport.Request{Length: uint32(n * segment), WQE: abi.SendWQE{Opcode: abi.OpRead, RKey: 7}}
		at := 0
		for r.Pending > 0 || !r.Issued {
			for !r.Issued {
				if _, err := p.conn.Issue(p.now, r); err != nil {
					t.Fatal(err)
				}
			}
			parts := p.allSent()
			for _, h := range parts {
				if h.RETH.VA != uint64(at)*segment {
					t.Errorf("part at %d, want %d", h.RETH.VA, at*segment)
				}
				count := int(h.RETH.Length) / segment
				list, at = append(list, count), at+count
			}
			p.serves(parts)
		}
		return list
	}
	if got := lengths(80); !slices.Equal(got, []int{32, 32, 16}) {
		t.Errorf("parts of %v packets at first", got)
	}
	if got := lengths(200); !slices.Equal(got, []int{64, 64, 64, 8}) {
		t.Errorf("parts of %v packets later", got)
	}
}

// TestAConnectionTakesOnlySoManyRequests: how many requests a connection takes, that a READ that has begun may grow
// where there is no room for another, and that READs have a limit of their own.
func TestAConnectionTakesOnlySoManyRequests(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	for range 255 {
		p.posts(abi.OpWrite, 8)
	}
	p.posts(abi.OpRead, 3*segment)
	r := transport.Request{Length: 8, WQE: abi.SendWQE{Opcode: abi.OpWrite}}
	if _, err := p.conn.Issue(p.now, &r); err != transport.ErrWindow {
		t.Errorf("one more: %v", err)
	}
	p.allSent()
	p.acks(100)
	if _, err := p.conn.Issue(p.now, &r); err != nil {
		t.Errorf("after one was answered: %v", err)
	}
	p = newPeer(t, &scripted{target: target{serving: true}}, func(x *transport.Terms) { x.Reads = 2 })
	p.posts(abi.OpRead, 40*segment) // two parts
	r = transport.Request{Length: 8, WQE: abi.SendWQE{Opcode: abi.OpFetchAdd}}
	if _, err := p.conn.Issue(p.now, &r); err != transport.ErrWindow {
		t.Errorf("a third: %v", err)
	}
	p.posts(abi.OpWrite, 8)
	p.conn.LimitReads(3)
	if _, err := p.conn.Issue(p.now, &r); err != nil {
		t.Errorf("with a higher limit: %v", err)
	}
}

// TestMessageEndsAndQuarterWindowsAskForAnswers: which packets ask for an answer. The window at first is 32.
func TestMessageEndsAndQuarterWindowsAskForAnswers(t *testing.T) {
	asking := func(list []heard) (at []int) {
		for i := range list {
			if list[i].BTH.AckReq {
				at = append(at, list[i].BTH.PSN.Sub(100))
			}
		}
		return at
	}
	inFrontOf := func(p *peer, packets int) {
		p.posts(abi.OpWrite, 8)
		p.posts(abi.OpRead, packets*segment)
		for range 20 {
			p.posts(abi.OpWrite, 8)
		}
	}
	for name, c := range map[string]struct {
		post func(p *peer)
		want []int
	}{
		"a message":                           {func(p *peer) { p.posts(abi.OpWrite, 5*segment) }, []int{4}},
		"one of nine packets":                 {func(p *peer) { p.posts(abi.OpWrite, 9*segment) }, []int{7, 8}},
		"one that fills":                      {func(p *peer) { p.posts(abi.OpWrite, 40*segment) }, []int{7, 15, 23, 31}},
		"small ones":                          {func(p *peer) { p.posts(abi.OpWrite, 8); p.posts(abi.OpWrite, 8) }, []int{0, 1}},
		"a READ among them":                   {func(p *peer) { p.posts(abi.OpRead, 8); p.posts(abi.OpWrite, 2*segment) }, []int{0, 2}},
		"a message, 16 behind it":             {func(p *peer) { p.posts(abi.OpWrite, 2*segment); p.posts(abi.OpWrite, 15*segment) }, []int{1, 9, 16}},
		"a message, 17 behind it":             {func(p *peer) { p.posts(abi.OpWrite, 2*segment); p.posts(abi.OpWrite, 16*segment) }, []int{7, 15, 17}},
		"one with a READ that fits beside it": {func(p *peer) { inFrontOf(p, 31) }, []int{1}},
		"one with a READ that does not fit":   {func(p *peer) { inFrontOf(p, 32) }, []int{0}},
	} {
		p := newPeer(t, &scripted{target: target{serving: true}})
		c.post(p)
		if got := asking(p.allSent()); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v ask, want %v", name, got, c.want)
		}
	}
}

// steady lets packets leave at a rate that does not change.
type steady struct {
	cc.Window
	rate float64
}

func (s steady) Init(x *cc.State) {
	s.Window.Init(x)
	x.Rate = s.rate
}

// TestPacketsLeaveAtTheRate: packets leave when the rate has them, 100 µs of it at once; acknowledgements do not
// wait.
func TestPacketsLeaveAtTheRate(t *testing.T) {
	const rate = 1e6 // a byte in a microsecond
	p := &peer{world: newWorld(1, false, 1500, sim.Impairment{}), t: t, now: 1e9}
	p.engines[0].UseCongestion(steady{rate: rate})
	p.attach(&scripted{target: target{serving: true}})
	for range 6 {
		p.posts(abi.OpWrite, 150)
	}
	begun, bytes := p.now, 0
	for i := range 6 {
		list := p.allSent()
		if len(list) != 1 {
			t.Fatalf("packet %d: %d at once", i, len(list))
		}
		if at := begun + max(0, vtime.Time(bytes)*1000-100e3); p.now != at {
			t.Errorf("packet %d leaves at %d, want %d", i, p.now-begun, at-begun)
		}
		bytes += list[0].size
		p.asks(ib.WriteOnly, 100+i, 8)
		if list := p.allSent(); len(list) != 1 || list[0].BTH.Opcode != ib.Acknowledge {
			t.Errorf("packet %d: an acknowledgement waits", i)
		}
		if !list[0].BTH.AckReq {
			t.Errorf("packet %d asks for no answer: its message has an end of its own under a rate", i)
		}
		p.now = p.engines[0].Deadline()
	}
	// After a pause the bound begins anew: what was not used is lost.
	p.acks(105)
	p.now += 10e9
	begun = p.now
	p.posts(abi.OpWrite, 150)
	p.posts(abi.OpWrite, 150)
	first := p.allSent()
	p.now = p.engines[0].Deadline()
	if second := p.allSent(); len(first) != 1 || len(second) != 1 || p.now-begun != vtime.Time(first[0].size)*1000-100e3 {
		t.Errorf("%d packets, the next %d ns later", len(first), p.now-begun)
	}
}

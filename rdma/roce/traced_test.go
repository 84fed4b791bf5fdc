package roce_test

import (
	"maps"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// traced is a peer of a connection whose function is traced: one queue pair of it, or with 0 all.
func traced(t *testing.T, qpn uint32, change ...func(*transport.Terms)) (*peer, *scripted, *trace.Ring) {
	t.Helper()
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e, change...)
	ring := trace.NewRing(256, func() int64 { return int64(p.now) }, qpn)
	of := new(verbs.Objects)
	p.acct.Trace, of.Account.Trace = ring, ring
	p.ports[0].Serve(of)
	return p, e, ring
}

// leave sends all packets that are waiting.
func (p *peer) leave() {
	p.t.Helper()
	p.engines[0].Run(p.now)
	for _, ok := p.next(); ok; _, ok = p.next() {
		p.ports[0].NoteSent(true)
	}
	p.engines[0].Run(p.now)
}

// kinds counts the events in the ring by kind.
func kinds(ring *trace.Ring) map[trace.Kind]int {
	list, _ := ring.Take(nil)
	seen := map[trace.Kind]int{}
	for i := range list {
		seen[list[i].Kind]++
	}
	return seen
}

// TestTraceOfRequests: each request is recorded when it is issued, and each of its packets when it
// is sent and when it is answered: by an acknowledgement or a refusal, not by a timeout.
func TestTraceOfRequests(t *testing.T) {
	unreliable := func(x *transport.Terms) { x.Unreliable = true }
	three := map[trace.Kind]int{trace.Issued: 1, trace.Scheduled: 3, trace.Sealed: 3}
	for name, c := range map[string]struct {
		terms []func(*transport.Terms)
		then  func(p *peer)
		acked int
	}{
		"acknowledged": {nil, func(p *peer) { p.acks(102) }, 3},
		"refused":      {nil, func(p *peer) { p.naks(101, ib.SynAccess) }, 2},
		"unanswered":   {[]func(*transport.Terms){func(x *transport.Terms) { x.Sending.RetryCount = 0 }}, func(p *peer) { p.now += 1e9 }, 0},
		"unreliable":   {[]func(*transport.Terms){unreliable}, func(*peer) {}, 0},
	} {
		p, _, ring := traced(t, 17, c.terms...)
		p.posts(abi.OpWrite, 3*segment)
		p.leave()
		c.then(p)
		p.engines[0].Run(p.now)
		want := maps.Clone(three)
		if c.acked > 0 {
			want[trace.Acked] = c.acked
		}
		if got := kinds(ring); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestTraceOfServed: the events recorded for the peer's requests, from their arrival to the answer.
func TestTraceOfServed(t *testing.T) {
	for name, c := range map[string]struct {
		asks func(p *peer)
		want map[trace.Kind]int
	}{
		"WRITE": {func(p *peer) { p.asks(ib.WriteOnly, 100, 8) }, map[trace.Kind]int{trace.Received: 1, trace.Opened: 1, trace.Delivered: 1, trace.Answered: 1}},
		"READ of three packets": {
			func(p *peer) { p.asks(ib.ReadRequest, 100, 600) },
			map[trace.Kind]int{trace.Received: 1, trace.Opened: 1, trace.Delivered: 1, trace.Scheduled: 3, trace.Sealed: 3, trace.Gone: 1},
		},
		"too early": {func(p *peer) { p.asks(ib.WriteOnly, 101, 8) }, map[trace.Kind]int{trace.Received: 1, trace.Opened: 1}}, // a NAK answers nothing
	} {
		p, _, ring := traced(t, 0)
		c.asks(p)
		p.leave()
		if got := kinds(ring); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestTracesMarkPacketsThatBringACompletion: a completion follows what takes a receive, and it is noted of the last packet
// alone.
func TestTracesMarkPacketsThatBringACompletion(t *testing.T) {
	for _, service := range []ib.Opcode{ib.RC, ib.UC} {
		p, _, ring := traced(t, 0, func(x *transport.Terms) { x.Unreliable = service == ib.UC })
		for i, c := range []struct {
			op     ib.Opcode
			n      int
			whole  uint32
			wanted bool
		}{
			{ib.SendFirst, segment, 0, false},
			{ib.SendLast, 8, 0, true},
			{ib.WriteFirst, segment, segment + 8, false},
			{ib.WriteLastImm, 8, 0, true},
			{ib.WriteOnly, 8, 8, false},
		} {
			h := wire.Headers{BTH: wire.BTH{Opcode: service | c.op, PSN: wire.PSN(100 + i)}, Extended: ib.Extended{RETH: ib.RETH{RKey: 7, Length: c.whole}}}
			p.sends(h, c.n)
			delivered := 0
			list, _ := ring.Take(nil)
			for _, e := range list {
				if e.Kind != trace.Delivered {
					continue
				}
				if delivered++; (e.Flags&trace.Wanted != 0) != c.wanted || (&trace.Operation{Wire: e.Wire}).Over().Name != roce.Name || e.Extra != uint32(c.n) || e.Op != uint8(service|c.op) {
					t.Errorf("%v: %+v, completion follows: %t", service|c.op, e, c.wanted)
				}
			}
			if delivered != 1 {
				t.Errorf("%v: noted %d times", service|c.op, delivered)
			}
		}
	}
}

// TestTraceOfOthers: with the trace of one queue pair nothing of others is noted.
func TestTraceOfOthers(t *testing.T) {
	for _, unreliable := range []bool{false, true} {
		p, _, ring := traced(t, 99, func(x *transport.Terms) { x.Unreliable = unreliable })
		service := ib.RC
		if unreliable {
			service = ib.UC
		}
		p.posts(abi.OpWrite, 8)
		p.asks(service|ib.WriteOnly, 100, 8)
		if !unreliable {
			p.asks(ib.ReadRequest, 101, 8)
		}
		p.leave()
		p.acks(100)
		if got := kinds(ring); len(got) != 0 {
			t.Errorf("unreliable %t: %v", unreliable, got)
		}
	}
}

// TestTracesKeepTheOrderWherePSNsWrap: packets follow each other in traces, also where PSNs wrap to 0.
func TestTracesKeepTheOrderWherePSNsWrap(t *testing.T) {
	p, _, ring := traced(t, 0, func(x *transport.Terms) { x.Sending.PSN, x.PSN = 1<<24-1, 1<<24-1 })
	p.posts(abi.OpWrite, 2*segment)
	p.asks(ib.WriteOnly, 1<<24-1, 8)
	p.asks(ib.WriteOnly, 0, 8)
	p.leave()
	list, _ := ring.Take(nil)
	last := map[trace.Kind]uint32{}
	for _, e := range list {
		switch e.Kind {
		case trace.Scheduled, trace.Received:
			if before, ok := last[e.Kind]; ok && int32(e.Extra-before) <= 0 {
				t.Errorf("%#x behind %#x", e.Extra, before)
			}
			last[e.Kind] = e.Extra
		}
	}
	if len(last) != 2 {
		t.Errorf("%+v", list)
	}
}

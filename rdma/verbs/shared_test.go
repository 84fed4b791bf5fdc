package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// polledQPs returns how many send queues are polled without doorbells.
func (g *guest) polledQPs() (n int) {
	g.shared.EachPolled(func(*QP) { n++ })
	return n
}

// TestEmptyQueuesThatCouldIssueArePolled: a send queue is polled when it is empty and something
// could be issued. One that waits for completions, for credit or for its driver is not.
func TestEmptyQueuesThatCouldIssueArePolled(t *testing.T) {
	for name, c := range map[string]struct {
		posts int
		then  func(s *side)
		want  int
	}{
		"empty":                     {0, func(*side) {}, 1},
		"requests are under way":    {sideEntries - 1, func(*side) {}, 1},
		"as many as there may be":   {sideEntries, func(*side) {}, 0},
		"one of them is done":       {sideEntries, func(s *side) { s.done(0, abi.WCSuccess) }, 1},
		"no credit":                 {1, func(s *side) { s.wire.says = transport.ErrBlocked }, 0},
		"enough packets":            {1, func(s *side) { s.wire.says = transport.ErrWindow }, 0},
		"its driver has it drained": {0, func(s *side) { s.change(0, abi.QPStateSQD) }, 0},
	} {
		g := newGuest(t, Limits{})
		g.UseFeatures(abi.FeatureExtendedVerbs | abi.FeatureEventIndex)
		s := g.newRC(nil)
		if c.posts == sideEntries {
			for i := range uint64(sideEntries) {
				s.post(0, write(i))
			}
			s.Turn(0)
			s.polled.Remove()
		} else {
			for i := range uint64(c.posts) {
				s.post(0, write(i))
			}
		}
		c.then(s)
		s.Turn(0)
		if n := g.polledQPs(); n != c.want {
			t.Errorf("%s: %d queues are polled", name, n)
		}
	}
}

// TestTheTraceShowsHowRequestsWereFoundAndEnded: the trace of a queue pair shows how its requests
// were found (by a doorbell, by polling or when their queue was armed) and how they ended, with a
// completion or without. It contains nothing of another queue pair.
func TestTheTraceShowsHowRequestsWereFoundAndEnded(t *testing.T) {
	for _, c := range []struct {
		name  string
		find  func(g *guest, s *side)
		flags uint8
		want  []trace.Kind
	}{
		{"doorbell", func(g *guest, s *side) {
			g.Objects.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: s.number, Index: 1})
		}, abi.SendSignaled, []trace.Kind{trace.Doorbell, trace.Read, trace.Completed}},
		{"polled", func(g *guest, _ *side) { g.shared.Poll(0) }, abi.SendSignaled, []trace.Kind{trace.Found, trace.Read, trace.Completed}},
		{"armed", func(g *guest, _ *side) { g.shared.Arm(0) }, 0, []trace.Kind{trace.Found, trace.Read, trace.Completed}},
	} {
		for _, traced := range []bool{true, false} {
			g := newGuest(t, Limits{})
			g.UseFeatures(abi.FeatureExtendedVerbs | abi.FeatureEventIndex)
			s := g.newRC(nil)
			s.Turn(0) // its queue is polled
			of := s.number
			if !traced {
				of++
			}
			ring := trace.NewRing(64, func() int64 { return 1 }, of)
			g.UseTrace(ring)
			x := write(1)
			x.Flags = c.flags
			b := make([]byte, abi.SendWQEHeader)
			x.Marshal(b)
			s.push(s.sends, b)
			c.find(g, s)
			s.Turn(0)
			s.done(0, abi.WCSuccess)
			events, _ := ring.Take(nil)
			var kinds []trace.Kind
			for _, e := range events {
				kinds = append(kinds, e.Kind)
				if e.Work != s.number || e.Kind == trace.Completed && (e.Flags&trace.Silent != 0) != (c.flags == 0) {
					t.Errorf("%s: %+v", c.name, e)
				}
			}
			want := c.want
			if !traced {
				want = nil
			}
			if !slices.Equal(kinds, want) {
				t.Errorf("%s, traced %t: %v, want %v", c.name, traced, kinds, want)
			}
		}
	}
}

// TestPolledQueuesAreArmedWhenTheirTimeIsOver: a queue with work found by polling gets a turn and
// is no longer polled. One that stays empty is armed when its time is over, or when the shard stops
// polling.
func TestPolledQueuesAreArmedWhenTheirTimeIsOver(t *testing.T) {
	g := newGuest(t, Limits{})
	g.UseFeatures(abi.FeatureExtendedVerbs | abi.FeatureEventIndex)
	busy, idle := g.newRC(nil), g.newRC(nil)
	const begin = 1e6
	for _, s := range []*side{busy, idle} {
		s.Turn(begin)
	}
	b := make([]byte, abi.SendWQEHeader)
	x := write(1)
	x.Marshal(b)
	busy.push(busy.sends, b)
	g.turns = 0
	if !g.shared.Poll(begin) || g.turns != 1 || g.polledQPs() != 1 {
		t.Errorf("%d turns, %d polled", g.turns, g.polledQPs())
	}
	if end := begin + g.shared.PollTime; g.shared.Poll(end-1) || g.polledQPs() != 1 || g.shared.Poll(end) || g.polledQPs() != 0 {
		t.Errorf("%d are polled at the end", g.polledQPs())
	}
	idle.Turn(begin)
	g.turns = 0
	if g.shared.Arm(begin) || g.turns != 0 || g.polledQPs() != 0 {
		t.Errorf("armed: %d turns, %d polled", g.turns, g.polledQPs())
	}
	idle.Turn(begin)
	idle.push(idle.sends, b)
	if !g.shared.Arm(begin) || g.turns != 1 {
		t.Errorf("armed, with an entry: %d turns", g.turns)
	}
}

// TestAPolledQueueNeedsNoDoorbell: the driver of a polled queue is asked for no doorbell until the
// polling time is over. (DRV-604)
func TestAPolledQueueNeedsNoDoorbell(t *testing.T) {
	for _, over := range []bool{false, true} {
		g := newGuest(t, Limits{})
		g.UseFeatures(abi.FeatureExtendedVerbs | abi.FeatureEventIndex)
		s := g.newRC(nil)
		s.post(0, write(1)) // so that the index asked for last is behind
		s.Turn(0)
		now := g.shared.PollTime - 1
		if over {
			now++
		}
		if g.shared.Poll(now) {
			t.Error("work in an empty queue")
		}
		if err := s.sends.Push(make([]byte, abi.SendWQEHeader)); err != nil {
			t.Fatal(err)
		}
		if _, need, err := s.sends.Publish(); err != nil || need != over {
			t.Errorf("time over %t: a doorbell is asked for %t, %v", over, need, err)
		}
	}
}

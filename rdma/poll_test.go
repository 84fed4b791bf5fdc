package rdma

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// shadowPair is a pair whose first driver uses the event index.
func shadowPair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{log2: 6, sigAll: true})
	p.hosts[0].fn.UseFeatures(abi.FeatureEventIndex)
	return p
}

// shadowWrite posts one WRITE and says whether a doorbell is due.
func (p *pair) shadowWrite(x abi.SendWQE) (need bool) {
	p.t.Helper()
	var entry [abi.SendWQEHeader + abi.SGESize]byte
	x.NumSGE = 1
	x.Marshal(entry[:])
	s := p.ma.sge(0, 100)
	s.Marshal(entry[abi.SendWQEHeader:])
	if err := p.a.sq.Push(entry[:]); err != nil {
		p.t.Fatal(err)
	}
	_, need, err := p.a.sq.Publish()
	if err != nil {
		p.t.Fatal(err)
	}
	return need
}

// TestPollingReplacesDoorbells: while the device polls, the producer index is the doorbell; before
// it stops it asks for one, and looks again (DRV-604, DEV-607, DEV-804).
func TestPollingReplacesDoorbells(t *testing.T) {
	p := shadowPair(t)
	x, e := p.remote(abi.OpWrite, 0), p.hosts[0].e
	p.a.ring()
	p.step() // empty: polled from here on
	p.shadowWrite(x)
	for i := range 40 {
		if !e.Poll(p.now) {
			t.Fatalf("request %d not found by polling", i)
		}
		success(t, p.a.send.wait(1))
		if p.shadowWrite(x) {
			t.Fatalf("request %d: a doorbell is asked for by a device that polls", i)
		}
	}
	if !e.Arm(p.now) {
		t.Fatal("the request posted before arming was not found by it")
	}
	success(t, p.a.send.wait(1))
	if e.Arm(p.now) {
		t.Fatal("work found in an empty queue")
	}
	if !p.shadowWrite(x) {
		t.Fatal("no doorbell asked for by a device that has stopped polling")
	}
	if e.Poll(p.now) {
		t.Fatal("an armed queue is polled")
	}
	p.a.ring()
	success(t, p.a.send.wait(1))
}

// polled are the queue pairs whose send queue is polled, next first.
func polled(e *Engine) (list []*verbs.QP) {
	e.shared.EachPolled(func(q *verbs.QP) { list = append(list, q) })
	return list
}

// TestPollingEndsByItself: a queue that stays empty is armed by itself, also when others keep the
// shard busy.
func TestPollingEndsByItself(t *testing.T) {
	p := shadowPair(t)
	e := p.hosts[0].e
	p.a.ring()
	p.step()
	if e.Poll(p.now) || len(polled(e)) == 0 {
		t.Fatal("not polled")
	}
	if e.Poll(p.now+e.cfg.PollTime) || len(polled(e)) != 0 {
		t.Fatal("polled for ever")
	}
	if !p.shadowWrite(p.remote(abi.OpWrite, 0)) {
		t.Fatal("not armed")
	}
}

// TestPollingEndsAtItsVeryMoment: the very moment at which polling ends arms the queue, too.
func TestPollingEndsAtItsVeryMoment(t *testing.T) {
	p := shadowPair(t)
	e := p.hosts[0].e
	for range 3 { // so that what it was armed for last is well behind
		p.shadowWrite(p.remote(abi.OpWrite, 0))
		p.a.ring()
		success(t, p.a.send.wait(1))
	}
	if len(polled(e)) != 1 {
		t.Fatal("not polled")
	}
	end := p.now
	for e.Poll(end); len(polled(e)) != 0; e.Poll(end) {
		end++
	}
	if end > p.now+e.cfg.PollTime {
		t.Errorf("polled for %v, want %v", end-p.now, e.cfg.PollTime)
	}
	if !p.shadowWrite(p.remote(abi.OpWrite, 0)) {
		t.Fatal("not armed")
	}
}

// TestPollTakesQueuesInTurn: one Poll looks at a bounded number of queues and the next goes on with
// the others.
func TestPollTakesQueuesInTurn(t *testing.T) {
	const n = 3*verbs.PollQuantum + 5
	p := newPair(t, true, 8192, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectQP: n + 1}}, arena: 64 << 20}, qpConfig{})
	p.hosts[0].fn.UseFeatures(abi.FeatureEventIndex)
	e := p.hosts[0].e
	for range n {
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
		p.connect(a, b, true)
	}
	for e.Run(p.now) {
	}
	seen := map[*verbs.QP]int{}
	for range 4 {
		order := polled(e)[:verbs.PollQuantum]
		e.Poll(p.now)
		if slices.Contains(polled(e)[:verbs.PollQuantum], order[0]) {
			t.Fatal("a queue that was looked at stands before others")
		}
		for _, q := range order {
			seen[q]++
		}
	}
	if len(seen) < n {
		t.Errorf("%d of %d queues looked at in 4 rounds", len(seen), n)
	}
}

// TestQueuePairsThatLeaveRTSAreNotPolled: a QP that leaves RTS, is reset, destroyed or belongs to a
// function that ended is not polled any more, since its driver may clear the queue (DRV-601); in
// ERR its queue is armed.
func TestQueuePairsThatLeaveRTSAreNotPolled(t *testing.T) {
	for name, leave := range map[string]func(p *pair){
		"reset":   func(p *pair) { p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset}) },
		"destroy": func(p *pair) { p.hosts[0].fn.DestroyQP(p.now, p.a.number) },
		"close":   func(p *pair) { p.hosts[0].fn.Close(p.now) },
	} {
		t.Run(name, func(t *testing.T) {
			p := shadowPair(t)
			p.a.ring()
			p.step()
			leave(p)
			if e := p.hosts[0].e; len(polled(e)) != 0 || e.Poll(p.now) || e.Arm(p.now) {
				t.Error("still polled")
			}
		})
	}
	p := shadowPair(t)
	p.a.ring()
	p.step()
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	p.settle(1e6)
	if len(polled(p.hosts[0].e)) != 0 {
		t.Fatal("polled in ERR")
	}
	if !p.shadowWrite(p.remote(abi.OpWrite, 0)) {
		t.Fatal("not armed in ERR")
	}
	p.a.ring()
	if wc := p.a.send.wait(1)[0]; wc.Status != abi.WCWRFlushErr {
		t.Errorf("%s", wc.Status)
	}
}

// TestAnImpossibleProducerFailsItsQueuePair: an impossible producer found by polling costs the
// queue pair (DEV-605).
func TestAnImpossibleProducerFailsItsQueuePair(t *testing.T) {
	p := shadowPair(t)
	p.a.ring()
	p.step()
	binary.LittleEndian.PutUint32(p.a.sqMem[abi.QueueHeaderProducer:], 1<<20)
	p.hosts[0].e.Poll(p.now)
	p.step()
	if p.a.q.State() != abi.QPStateErr {
		t.Errorf("QP in %v", p.a.q.State())
	}
	if len(polled(p.hosts[0].e)) != 0 {
		t.Error("still polled")
	}
}

// TestNoRequestIsLeftBehindByTheEventIndex posts with a driver that rings only when the event index
// asks for it: no request is left behind.
func TestNoRequestIsLeftBehindByTheEventIndex(t *testing.T) {
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

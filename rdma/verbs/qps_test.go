package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAQueuePairNeedsExactlyThePartsOfItsType: a queue pair needs exactly the parts of its type,
// within the limits of its function.
func TestAQueuePairNeedsExactlyThePartsOfItsType(t *testing.T) {
	g := newGuest(t, Limits{SGEs: 3, Inline: 100, QPEntries: 8, Objects: Counts{abi.ObjectQP: 50}})
	cq, list := g.newCQ(3), g.run(g.pages(1), 1)
	domain, st := g.OpenXRCD()
	g.good(st)
	basic, shared := g.newSRQ(abi.CreateSRQ{}), g.newSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: domain, CQN: cq.number})
	initiator := func(c *abi.CreateQP) {
		c.Type, c.RecvCQ = abi.QPTypeXRCSend, 0
		c.RQLog2Entries, c.RQLog2Stride, c.RQLevels, c.RQPages, c.MaxRecvSGE = 0, 0, 0, 0, 0
	}
	target := func(c *abi.CreateQP) { *c = abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: domain} }
	both := func(first, second func(c *abi.CreateQP)) func(c *abi.CreateQP) {
		return func(c *abi.CreateQP) {
			first(c)
			second(c)
		}
	}
	for _, x := range []struct {
		name   string
		change func(c *abi.CreateQP)
		want   abi.Status
		broke  abi.Clause
	}{
		{"reliable", func(*abi.CreateQP) {}, abi.StatusOK, 0},
		{"all of the limits", func(c *abi.CreateQP) { c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline = 3, 3, 100 }, abi.StatusOK, 0},
		{"elements to send", func(c *abi.CreateQP) { c.MaxSendSGE = 4 }, abi.StatusTooLarge, 0},
		{"elements to receive", func(c *abi.CreateQP) { c.MaxRecvSGE = 4 }, abi.StatusTooLarge, 0},
		{"inline bytes", func(c *abi.CreateQP) { c.MaxInline = 101 }, abi.StatusTooLarge, 0},
		{"entries", func(c *abi.CreateQP) { c.SQLog2Entries = 4 }, abi.StatusTooLarge, 0},
		{"entries to receive", func(c *abi.CreateQP) { c.RQLog2Entries = 4 }, abi.StatusTooLarge, 0},
		{"smallest entries", func(c *abi.CreateQP) {
			c.SQLog2Stride, c.MaxSendSGE, c.MaxInline, c.RQLog2Stride, c.MaxRecvSGE = 6, 0, 0, 5, 1
		}, abi.StatusOK, 0},
		{"smaller to send", func(c *abi.CreateQP) { c.SQLog2Stride, c.MaxSendSGE, c.MaxInline = 5, 0, 0 }, abi.StatusInvalidArgument, abi.DRV608},
		{"smaller to receive", func(c *abi.CreateQP) { c.RQLog2Stride, c.MaxRecvSGE = 4, 0 }, abi.StatusInvalidArgument, 0},
		{"no room for elements", func(c *abi.CreateQP) { c.RQLog2Stride, c.MaxRecvSGE = 5, 2 }, abi.StatusInvalidArgument, abi.DRV608},
		{"no room for inline data", func(c *abi.CreateQP) { c.SQLog2Stride, c.MaxSendSGE, c.MaxInline = 7, 0, 65 }, abi.StatusInvalidArgument, abi.DRV608},
		{"room for inline data", func(c *abi.CreateQP) { c.SQLog2Stride, c.MaxSendSGE, c.MaxInline = 7, 0, 64 }, abi.StatusOK, 0},
		{"no room for masks", func(c *abi.CreateQP) { c.SQLog2Stride, c.MaxSendSGE, c.MaxInline = 6, 1, 0 }, abi.StatusInvalidArgument, abi.DRV608},
		{"signals all", func(c *abi.CreateQP) { c.SigAll = 1 }, abi.StatusOK, 0},
		{"signals no number", func(c *abi.CreateQP) { c.SigAll = 2 }, abi.StatusInvalidArgument, 0},
		{"unknown flag", func(c *abi.CreateQP) { c.Flags = 0x80 }, abi.StatusInvalidArgument, 0},
		{"a domain that it does not want", func(c *abi.CreateQP) { c.XRCDN = domain }, abi.StatusInvalidArgument, 0},
		{"no domain", func(c *abi.CreateQP) { c.PDN = 0x777 }, abi.StatusNotFound, 0},
		{"no queue to send", func(c *abi.CreateQP) { c.SendCQ = 0 }, abi.StatusNotFound, 0},
		{"no queue to receive", func(c *abi.CreateQP) { c.RecvCQ = 0 }, abi.StatusNotFound, 0},
		{"shared queue", basic.use, abi.StatusOK, 0},
		{"shared queue and its own", func(c *abi.CreateQP) { c.SRQN = basic.number }, abi.StatusInvalidArgument, 0},
		{"shared queue of XRC", shared.use, abi.StatusInvalidArgument, 0},
		{"no such shared queue", func(c *abi.CreateQP) { c.SRQN = 0x777 }, abi.StatusNotFound, 0},
		{"weak", func(c *abi.CreateQP) { c.Ordering = abi.OrderingWeak }, abi.StatusOK, 0},
		{"unordered", func(c *abi.CreateQP) {
			c.Ordering, c.ErrorMode = abi.OrderingUnordered, abi.ErrorModeCompleteInError
		}, abi.StatusOK, 0},
		{"unordered with errors of verbs", func(c *abi.CreateQP) { c.Ordering = abi.OrderingUnordered }, abi.StatusInvalidArgument, 0},
		{"no such ordering", func(c *abi.CreateQP) {
			c.Ordering, c.ErrorMode = abi.OrderingUnordered+1, abi.ErrorModeCompleteInError
		}, abi.StatusInvalidArgument, 0},
		{"no such mode", func(c *abi.CreateQP) { c.ErrorMode = abi.ErrorModeCompleteInError + 1 }, abi.StatusInvalidArgument, 0},
		{"unreliable", func(c *abi.CreateQP) { c.Type = abi.QPTypeUC }, abi.StatusOK, 0},
		{"unreliable, weak", func(c *abi.CreateQP) { c.Type, c.Ordering = abi.QPTypeUC, abi.OrderingWeak }, abi.StatusInvalidArgument, abi.DRV960},
		{"unreliable, errors alone", func(c *abi.CreateQP) {
			c.Type, c.ErrorMode = abi.QPTypeUC, abi.ErrorModeCompleteInError
		}, abi.StatusInvalidArgument, abi.DRV960},
		{"unreliable, something else", func(c *abi.CreateQP) { c.Type, c.SigAll = abi.QPTypeUC, 2 }, abi.StatusInvalidArgument, 0},
		{"reliable, something else", func(c *abi.CreateQP) { c.SigAll, c.Ordering = 2, abi.OrderingWeak }, abi.StatusInvalidArgument, 0},
		{"datagrams", func(c *abi.CreateQP) { c.Type = abi.QPTypeUD }, abi.StatusOK, 0},
		{"initiator", initiator, abi.StatusOK, 0},
		{"initiator without a domain", both(initiator, func(c *abi.CreateQP) { c.PDN = 0x777 }), abi.StatusNotFound, 0},
		{"initiator without a queue", both(initiator, func(c *abi.CreateQP) { c.SendCQ = 0 }), abi.StatusNotFound, 0},
		{"initiator that receives", both(initiator, func(c *abi.CreateQP) { c.RecvCQ = cq.number }), abi.StatusInvalidArgument, abi.DRV924},
		{"initiator of a shared queue", both(initiator, func(c *abi.CreateQP) { c.SRQN = basic.number }), abi.StatusInvalidArgument, abi.DRV924},
		{"initiator with a queue", both(initiator, func(c *abi.CreateQP) { c.RQPages = list }), abi.StatusInvalidArgument, abi.DRV924},
		{"target", target, abi.StatusOK, 0},
		{"target of no domain", both(target, func(c *abi.CreateQP) { c.XRCDN = 0x777 }), abi.StatusNotFound, 0},
		{"target with a PD", both(target, func(c *abi.CreateQP) { c.PDN = g.pdn }), abi.StatusInvalidArgument, abi.DRV924},
		{"target that sends", both(target, func(c *abi.CreateQP) { c.SendCQ = cq.number }), abi.StatusInvalidArgument, abi.DRV924},
		{"target that receives", both(target, func(c *abi.CreateQP) { c.RecvCQ = cq.number }), abi.StatusInvalidArgument, abi.DRV924},
		{"target of a shared queue", both(target, func(c *abi.CreateQP) { c.SRQN = basic.number }), abi.StatusInvalidArgument, abi.DRV924},
		{"target with a queue", both(target, func(c *abi.CreateQP) { c.SQPages = list }), abi.StatusInvalidArgument, abi.DRV924},
		{"no such type", func(c *abi.CreateQP) { c.Type = 200 }, abi.StatusUnsupported, 0},
	} {
		c := abi.CreateQP{
			PDN: g.pdn, SendCQ: cq.number, RecvCQ: cq.number, Type: abi.QPTypeRC, SQLog2Entries: 3, RQLog2Entries: 3, SQLog2Stride: 8, RQLog2Stride: 7,
			MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64, SQLevels: 1, RQLevels: 1, SQPages: list, RQPages: list,
		}
		x.change(&c)
		g.violations = nil
		_, st := g.CreateQP(&c)
		var broke abi.Clause
		for _, v := range g.violations {
			broke = abi.Clause(v.Clause)
		}
		if st != x.want || broke != x.broke || len(g.violations) > 1 {
			t.Errorf("%s: %v, want %v; breaks %v, want %v", x.name, st, x.want, broke, x.broke)
		}
	}
}

// TestTheQuotaOfQueuePairsLeavesOutNumber1: queue pairs have a quota, which does not count queue
// pair number 1.
func TestTheQuotaOfQueuePairsLeavesOutNumber1(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectQP: 1}})
	gsi := g.newQP(abi.QPTypeGSI, nil)
	if gsi.number != gsiNumber || g.QP(gsiNumber) != gsi.QP {
		t.Errorf("number %d", gsi.number)
	}
	first := g.newQP(abi.QPTypeRC, nil)
	create := func(typ abi.QPType) abi.Status {
		list := g.run(g.pages(1), 1)
		_, st := g.CreateQP(&abi.CreateQP{
			PDN: g.pdn, SendCQ: first.sent.number, RecvCQ: first.sent.number, Type: typ, SQLog2Entries: 1, RQLog2Entries: 1, SQLog2Stride: 6, RQLog2Stride: 5,
			SQLevels: 1, RQLevels: 1, SQPages: list, RQPages: list,
		})
		return st
	}
	if st := create(abi.QPTypeRC); st != abi.StatusNoResources {
		t.Errorf("one more: %v", st)
	}
	if st := create(abi.QPTypeGSI); st != abi.StatusBusy {
		t.Errorf("another of number 1: %v", st)
	}
	g.good(g.DestroyQP(0, gsiNumber))
	if st := create(abi.QPTypeRC); st != abi.StatusNoResources || g.QP(gsiNumber) != nil || g.QP(first.number) != first.QP {
		t.Errorf("one more: %v", st)
	}
	g.good(create(abi.QPTypeGSI))
	g.good(g.DestroyQP(0, first.number))
	g.good(create(abi.QPTypeRC))
	if g.QP(gsiNumber) == nil {
		t.Error("the one of number 1 is gone")
	}
}

// TestObjectsInUseCannotBeDestroyed: the objects that a queue pair uses cannot be destroyed, and
// are counted once for each use.
func TestObjectsInUseCannotBeDestroyed(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newQP(abi.QPTypeRC, nil)
	busy := func(want abi.Status) {
		t.Helper()
		for what, st := range map[string]abi.Status{
			"domain": g.DeallocPD(g.pdn), "send queue": g.DestroyCQ(s.sent.number), "receive queue": g.DestroyCQ(s.received.number),
		} {
			if st != want {
				t.Errorf("%s: %v, want %v", what, st, want)
			}
		}
	}
	busy(abi.StatusBusy)
	g.good(g.DestroyQP(0, s.number))
	if st := g.DestroyQP(0, s.number); st != abi.StatusNotFound {
		t.Errorf("destroyed twice: %v", st)
	}
	busy(abi.StatusOK)
	busy(abi.StatusNotFound)
}

// TestNoQueuePairHasTheNumberOfGroups: wherever the numbers begin, a queue pair's has 24 bits, and is none that
// means something else.
func TestNoQueuePairHasTheNumberOfGroups(t *testing.T) {
	g := newGuest(t, Limits{})
	g.StartAt(0xff<<32 | 0xfffe)
	var got []uint32
	for range 3 {
		q := g.newRC(nil)
		if got = append(got, q.number); g.QP(q.number) == nil {
			t.Errorf("no queue pair has number %#x", q.number)
		}
	}
	if want := []uint32{0xfffffe, 0xff0002, 0xff0003}; !slices.Equal(got, want) {
		t.Errorf("numbers %#x, want %#x", got, want)
	}
}

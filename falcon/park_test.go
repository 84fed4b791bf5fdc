package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestPeerThatIsNotReadyHoldsNoCredits: a transaction that waits for a receiver returns its
// credits, and so do those that can only wait behind it: pushes that were not sent, and pulls that
// the peer has. Others can have all the credits. When the peer is ready, everything is sent,
// whoever has the credits, and completes in order: the peer reserves places for it, for which the
// others may be waiting.
func TestPeerThatIsNotReadyHoldsNoCredits(t *testing.T) {
	for _, fcwnd := range []float64{2, 32} {
		node := credit.New(nil, credit.NoLimit())
		limit := credit.NoLimit()
		limit[credit.ReqPktTx] = 8
		node.SetLimit(limit)
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
			cfg[0].Profile.CC, cfg[0].Credits = fixed(fcwnd, 64), node
		})
		ready := false
		p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
			if ready {
				ev.Conn.AckPush(now, ev.RSN)
			} else {
				ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 17, 0) // 3.84 ms
			}
		}
		p.push(p.a, 100, 1, 2, 3, 4, 5, 6)
		p.pull(p.a, 100, 7, 8)
		p.run(3 * ms)
		if held := node.InUse(); held != (credit.Cost{}) || node.Parked() != 8 {
			t.Fatalf("window %v: %v held and %d parked while the peer is not ready", fcwnd, held, node.Parked())
		}
		if err := p.a.Push(p.Now, 9, 100); !errors.Is(err, falcon.ErrXoff) {
			t.Errorf("window %v: a push that could only wait: %v", fcwnd, err)
		}
		all := credit.Cost{credit.ReqPktTx: 8}
		if !node.Take(&all) {
			t.Fatalf("window %v: another cannot have the credits", fcwnd)
		}
		ready = true
		p.run(40 * ms)
		p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5, 6)
		p.wantTags(0, falcon.EvPullDone, 7, 8)
		if len(p.events(0, falcon.EvCredit)) != 0 {
			t.Errorf("window %v: who was refused hears of credit that another has", fcwnd)
		}
		_ = node.Return(&all)
		p.ae.CreditsChanged()
		p.run(1 * ms)
		if len(p.events(0, falcon.EvCredit)) == 0 {
			t.Errorf("window %v: who was refused hears of no credit", fcwnd)
		}
		p.push(p.a, 100, 9)
		p.run(10 * ms)
		p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5, 6, 9)
		p.wantIdle()
		if held := node.InUse(); held != (credit.Cost{}) || node.Parked() != 0 {
			t.Errorf("window %v: %v held and %d parked at the end", fcwnd, held, node.Parked())
		}
	}
}

// TestParkedIsBounded: as many transactions may be parked as the node allows, and the others keep
// their credits. Closing the connection removes all of them.
func TestParkedIsBounded(t *testing.T) {
	function := credit.New(nil, credit.NoLimit())
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 1
	p := newPair(t, func(cfg *[2]falcon.Config, c *falcon.ConnConfig, _ *sim.Impairment) {
		c.Ordered, cfg[0].Credits = false, function
	})
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) { ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 17, 0) }
	function.SetLimit(limit)
	for tag := range uint64(5) {
		p.push(p.a, 100, tag)
		p.run(20 * us)
	}
	if err := p.a.Push(p.Now, 5, 100); !errors.Is(err, falcon.ErrXoff) || function.Parked() != 4 || function.InUse()[credit.ReqPktTx] != 1 {
		t.Errorf("%v, %d parked, %v in use", err, function.Parked(), function.InUse())
	}
	p.a.Close(p.Now)
	p.run(1 * ms)
	if function.Parked() != 0 || function.InUse() != (credit.Cost{}) || p.ae.Stats().CreditErrors != 0 {
		t.Errorf("%d parked, %v in use after the end", function.Parked(), function.InUse())
	}
}

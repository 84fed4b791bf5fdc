package roce

import (
	"slices"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// cost is what n bytes of an entry take of the function's credits: what they would take over
// Falcon.
func cost(pulls bool, n int) credit.Cost {
	if pulls {
		return credit.PullCost(n, credit.DefaultCell)
	}
	return credit.PushCost(n, credit.DefaultCell)
}

// takeCredit takes what a packet of r with n bytes costs the function.
func (s *requester) takeCredit(r *transport.Request, n int) error {
	if s.credits == nil {
		return nil
	}
	s.release() // to be taken at once
	x := cost(r.Pulls(), n)
	switch {
	case s.credits.Take(&x):
		s.first = false
		return nil
	case !s.credits.Possible(&x): // waiting would not help
		r.Status = abi.WCGeneralErr
		return transport.ErrFailed
	}
	s.want = x
	if !s.blocked {
		s.blocked = true
		at := len(s.e.creditless)
		if s.first {
			at = 0
		}
		s.e.creditless = slices.Insert(s.e.creditless, at, s)
	}
	s.account.CreditWaits++
	return transport.ErrBlocked
}

// waitNoMore takes the requester from those that wait for credit.
func (s *requester) waitNoMore() {
	if s.blocked {
		s.blocked = false
		at := slices.Index(s.e.creditless, s)
		s.e.creditless = slices.Delete(s.e.creditless, at, at+1)
	}
}

// release gives back what unblock holds for the requester.
func (s *requester) release() {
	if s.kept {
		s.kept = false
		_ = s.credits.Return(&s.want) // counted by the node; cannot fail for what was taken
	}
}

// returnCredits gives back what an entry took.
func (s *requester) returnCredits(e *entry) {
	if s.credits == nil {
		return
	}
	for left, first := int(e.length), true; left > 0 || first; first = false {
		n := min(left, s.segment)
		x := cost(e.pulls(), n)
		_ = s.credits.Return(&x) // counted by the node; cannot fail for what was taken
		left -= n
	}
	s.e.host.CreditsChanged()
}

package roce

import (
	"slices"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// cost returns the credits that n bytes of an entry take from the function: the same as over
// Falcon.
func cost(pulls bool, n int) credit.Cost {
	if pulls {
		return credit.PullCost(n, credit.DefaultCell)
	}
	return credit.PushCost(n, credit.DefaultCell)
}

// takeCredit takes the credits for a packet of r with n bytes.
func (s *requester) takeCredit(r *transport.Request, n int) error {
	if s.credits == nil {
		return nil
	}
	s.release() // it takes them again at once
	x := cost(r.Pulls(), n)
	switch {
	case s.parked == 0 && s.credits.Take(&x): // behind a peer that is not ready the packet could only wait
		s.first = false
		return nil
	case !s.credits.Possible(&x): // waiting would not help
		r.Status = abi.WCGeneralErr
		return transport.ErrFailed
	}
	s.want = x
	if !s.blocked {
		s.blocked = true
		at := len(s.end.e.creditless)
		if s.first {
			at = 0
		}
		s.end.e.creditless = slices.Insert(s.end.e.creditless, at, s)
	}
	s.end.account.CreditWaits++
	return transport.ErrBlocked
}

// waitNoMore removes the requester from those that wait for credit.
func (s *requester) waitNoMore() {
	if s.blocked {
		s.blocked = false
		at := slices.Index(s.end.e.creditless, s)
		s.end.e.creditless = slices.Delete(s.end.e.creditless, at, at+1)
	}
}

// release returns the credits that unblock reserved for the requester.
func (s *requester) release() {
	if s.kept {
		s.kept = false
		_ = s.credits.Return(&s.want) // the node counts errors; it cannot fail for what was taken
	}
}

// price returns the credits that an entry took.
func (s *requester) price(e *entry) (all credit.Cost) {
	for left, first := int(e.length), true; left > 0 || first; first = false {
		n := min(left, s.end.segment)
		for i, v := range cost(e.pulls(), n) {
			all[i] += v
		}
		left -= n
	}
	return all
}

// returnCredits returns the credits that an entry took.
func (s *requester) returnCredits(e *entry) {
	if s.credits == nil {
		return
	}
	x := s.price(e)
	if e.parked {
		s.credits.Forget(&x)
		s.unparked(e)
		return
	}
	_ = s.credits.Return(&x) // the node counts errors; it cannot fail for what was taken
	s.end.e.host.CreditsChanged()
}

// park releases the credits of all entries, as far as the node allows, because they wait for the
// peer's receiver.
func (s *requester) park() {
	if s.credits == nil {
		return
	}
	for i := range s.entries.Len() {
		e := s.entries.At(i)
		if x := s.price(e); !e.parked && s.credits.Park(&x) {
			e.parked = true
			s.parked++
		}
	}
	s.end.e.host.CreditsChanged()
}

// unpark charges an entry that is sent again for its credits.
func (s *requester) unpark(e *entry) {
	if e.parked {
		x := s.price(e)
		s.credits.Unpark(&x)
		s.unparked(e)
	}
}

func (s *requester) unparked(e *entry) {
	e.parked = false
	if s.parked--; s.parked == 0 {
		s.end.e.host.CreditsChanged() // the queue pair may issue again
	}
}

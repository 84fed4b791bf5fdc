package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

var cases = []struct {
	name    string
	needs   transport.Features
	options Options
	run     func(*stage)
}{
	{"Sizes", 0, Options{}, sizes},
	{"Order", 0, Options{}, order},
	{"AtomicsOnce", 0, Options{}, atomicsOnce},
	{"NotReady", 0, Options{}, notReady},
	{"Refusals", 0, Options{}, refusals},
	{"RefusedAlone", transport.FailureAlone, Options{InError: true}, refusedAlone},
	{"GatherFails", 0, Options{}, gatherFails},
	{"Spoiled", transport.FailureAlone, Options{InError: true}, spoiled},
	{"Window", 0, Options{}, window},
	{"Blocked", transport.Credits, Options{Narrow: true}, blocked},
	{"LimitReads", 0, Options{}, limitReads},
	{"Forget", 0, Options{}, forget},
	{"Drain", 0, Options{}, drain},
	{"Close", 0, Options{}, closed},
	{"Abort", 0, Options{}, aborted},
	{"AttachedOnce", 0, Options{}, attachedOnce},
	{"UnreliableSizes", transport.Unreliable, Options{Unreliable: true}, unreliableSizes},
	{"UnreliableOrder", transport.Unreliable, Options{Unreliable: true}, unreliableOrder},
	{"UnreliableNotReady", transport.Unreliable, Options{Unreliable: true}, unreliableNotReady},
	{"UnreliableRefused", transport.Unreliable, Options{Unreliable: true}, unreliableRefused},
	{"UnreliableGatherFails", transport.Unreliable, Options{Unreliable: true}, unreliableGatherFails},
	{"UnreliablePeerGone", transport.Unreliable, Options{Unreliable: true}, unreliablePeerGone},
}

// ended fails the case unless r ended with status want.
func (s *stage) ended(r *request, want abi.WCStatus) {
	s.Helper()
	if r.order == 0 || r.Status != want {
		s.Errorf("%s of %d bytes: over %t, %s, want %s", r.WQE.Opcode, r.Length, r.order != 0, r.Status, want)
	}
}

// sizes sends messages of every operation with sizes from 0 bytes to many packets, one after the
// other.
func sizes(s *stage) {
	n := s.a.segment
	for _, size := range []int{0, 1, 2, 3, 4, 5, n - 1, n, n + 1, 2 * n, 10*n + 3} {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm, abi.OpRead} {
			if op == abi.OpSendImm && !s.can(transport.SendImm) {
				continue
			}
			clear(s.b.memory)
			for i := range s.b.memory {
				if op == abi.OpRead {
					s.b.memory[i] = byte(i * 3)
				}
			}
			s.b.receives = 1
			s.b.messages = nil
			r := s.a.post(op, size)
			r.WQE.RemoteAddr = 8
			s.until(func() bool { return s.a.allOver() })
			s.ended(r, abi.WCSuccess)
			if want := max(1, (size+n-1)/n); r.done != want || r.Pending != 0 {
				s.Errorf("%s of %d bytes: %d packets done, %d pending, want %d", op, size, r.done, r.Pending, want)
			}
			if !r.TakesReceive() {
				if !bytes.Equal(r.data, s.b.memory[8:8+size]) || len(s.b.messages) != 0 {
					s.Fatalf("%s of %d bytes: data differs, or a message came", op, size)
				}
				continue
			}
			if len(s.b.messages) != 1 {
				s.Fatalf("%s of %d bytes: %d messages", op, size, len(s.b.messages))
			}
			m := s.b.messages[0]
			got := m.data
			if op == abi.OpWriteImm {
				got = s.b.memory[8 : 8+size]
			}
			if len(m.data) != size || !bytes.Equal(r.data, got) || m.op != op || m.failed != abi.WCSuccess || op != abi.OpSend && m.imm != r.WQE.Imm {
				s.Fatalf("%s of %d bytes: %s of %d bytes, %#x, %s", op, size, m.op, len(m.data), m.imm, m.failed)
			}
		}
	}
}

// refused fails the case unless the peer refused r with status want. Over a wire that does not
// confirm, the end of the connection may tell it.
func (s *stage) refused(r *request, want abi.WCStatus) {
	s.Helper()
	if !s.can(transport.Confirmation) && !r.Pulls() {
		s.until(func() bool { return s.a.ended })
	}
	if s.a.ended && s.a.endedWith == want && (r.order == 0 || r.Status == abi.WCSuccess && !r.Pulls()) {
		return
	}
	s.ended(r, want)
}

// order sends many messages of different sizes in both directions at once. They must complete in
// the order sent, with their own data.
func order(s *stage) {
	const count = 60
	send := abi.OpSend
	if s.can(transport.SendImm) {
		send = abi.OpSendImm
	}
	for _, e := range []*end{s.a, s.b} {
		e.receives = count
		for i := range count {
			e.post(send, i*37%1500)
			e.post(abi.OpRead, i*53%700)
		}
	}
	s.until(func() bool {
		return s.a.allOver() && s.b.allOver() && len(s.a.messages) == count && len(s.b.messages) == count
	})
	for _, e := range []*end{s.a, s.b} {
		from := s.a
		if e == s.a {
			from = s.b
		}
		for i, m := range e.messages {
			if r := from.requests[2*i]; send == abi.OpSendImm && m.imm != r.WQE.Imm || !bytes.Equal(m.data, r.data) {
				s.Fatalf("message %d is not what was sent", i)
			}
		}
	}
	if s.a.acct.PushesTx != s.b.acct.PushesRx || s.a.acct.PullsTx != s.b.acct.PullsRx {
		s.Errorf("sent %d and %d, got %d and %d packets", s.a.acct.PushesTx, s.a.acct.PullsTx, s.b.acct.PushesRx, s.b.acct.PullsRx)
	}
}

// atomicsOnce adds many times. Nothing may be added twice, even if packets are sent again.
func atomicsOnce(s *stage) {
	const count = 100
	ops := []abi.Opcode{abi.OpFetchAdd, abi.OpCmpSwap, abi.OpMaskedFetchAdd, abi.OpMaskedCmpSwap}
	for i := range count {
		r := s.a.post(ops[i%4], 8)
		r.WQE.CompareAdd, r.WQE.Swap = 1, 1
	}
	s.until(s.a.allOver)
	if s.b.atomics != count || s.b.memory[0] != count {
		s.Fatalf("%d atomics, sum %d", s.b.atomics, s.b.memory[0])
	}
	for i, r := range s.a.requests {
		if got := binary.LittleEndian.Uint64(r.data); got != uint64(i) || r.Status != abi.WCSuccess {
			s.Fatalf("atomic %d got %d, %s", i, got, r.Status)
		}
	}
}

// notReady sends before there is a receive. The peer answers not-ready several times, and in the
// end the message must arrive, once. Over a wire on which messages do not wait, the connection ends.
func notReady(s *stage) {
	if !s.can(transport.Waiting) {
		r := s.a.post(abi.OpSend, 8)
		s.until(func() bool { return s.a.ended })
		s.refused(r, abi.WCRNRRetryExcErr)
		if r.notReady != 0 || len(s.b.messages) != 0 {
			s.Errorf("not ready %d times, %d messages", r.notReady, len(s.b.messages))
		}
		return
	}
	r := s.a.post(abi.OpSend, 3*s.a.segment)
	s.until(func() bool { return r.notReady >= 3 })
	if r.order != 0 || len(s.b.messages) != 0 {
		s.Fatal("over without a receive")
	}
	behind := s.a.post(abi.OpSend, 9)
	s.b.receives = 2
	s.until(s.a.allOver)
	s.ended(r, abi.WCSuccess)
	s.ended(behind, abi.WCSuccess)
	if len(s.b.messages) != 2 || !bytes.Equal(s.b.messages[0].data, r.data) || !bytes.Equal(s.b.messages[1].data, behind.data) {
		s.Fatalf("%d messages", len(s.b.messages))
	}
	if s.b.acct.RNRTx == 0 || s.a.acct.RNRRx < 3 {
		s.Errorf("%d answers given, %d received", s.b.acct.RNRTx, s.a.acct.RNRRx)
	}
}

// refusals makes the peer refuse requests of several kinds for every reason.
func refusals(s *stage) {
	for _, c := range []struct {
		why  transport.Refusal
		want abi.WCStatus
	}{
		{transport.Access, abi.WCRemAccessErr},
		{transport.UnknownKey, abi.WCRemAccessErr},
		{transport.ForeignKey, abi.WCRemAccessErr},
		{transport.OutOfBounds, abi.WCRemAccessErr},
		{transport.Invalid, abi.WCRemInvReqErr},
		{transport.Operation, abi.WCRemOpErr},
		{transport.NotServing, abi.WCRetryExcErr},
	} {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpRead, abi.OpFetchAdd} {
			s := s.again()
			s.b.refuse, s.b.receives, s.b.serving = c.why, 1, c.why != transport.NotServing
			r := s.a.post(op, 8)
			s.until(func() bool { return s.a.allOver() || s.a.ended })
			s.refused(r, c.want)
			if c.why != transport.NotServing && r.Pulls() && len(s.b.refused) != 1 {
				s.Errorf("%s: refused %v", op, s.b.refused)
			}
		}
	}
}

// refusedAlone makes the peer refuse messages that fail alone. Those behind them must arrive.
func refusedAlone(s *stage) {
	s.b.receives = 2
	s.b.refuse, s.b.alone = transport.Access, true
	for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpRead} {
		r := s.a.post(op, 8)
		s.until(s.a.allOver)
		s.ended(r, abi.WCRemAccessErr)
	}
	s.b.refuse = transport.Accepted
	r := s.a.post(abi.OpSend, 8)
	s.until(s.a.allOver)
	s.ended(r, abi.WCSuccess)
	if m := s.b.messages; len(m) != 2 || m[0].failed != abi.WCLocAccessErr || m[1].failed != abi.WCSuccess || !s.b.serving {
		s.Errorf("messages %+v, serving %t", m, s.b.serving)
	}
}

// gatherFails makes the memory of a request unreadable before it is sent.
func gatherFails(s *stage) {
	s.b.receives = 1
	r := s.a.post(abi.OpSend, 8)
	r.gone = true
	s.until(s.a.allOver)
	s.ended(r, abi.WCLocProtErr)
	if len(s.b.messages) != 0 || s.a.gathered == 0 {
		s.Errorf("%d messages arrived, asked %d times", len(s.b.messages), s.a.gathered)
	}
}

// spoiled does what gatherFails does, where requests complete in error. The peer must learn of it,
// and the message behind must arrive.
func spoiled(s *stage) {
	s.b.receives = 2
	r := s.a.post(abi.OpSend, 3*s.a.segment)
	r.gone = true
	behind := s.a.post(abi.OpSend, 8)
	s.until(func() bool { return s.a.allOver() && len(s.b.messages) == 2 })
	s.ended(r, abi.WCLocProtErr)
	s.ended(behind, abi.WCSuccess)
	if m := s.b.messages; m[0].failed != abi.WCRemAbortErr || m[1].failed != abi.WCSuccess || !bytes.Equal(m[1].data, behind.data) {
		s.Errorf("messages %+v", m)
	}
}

// window sends more than may be in flight. Issue must return ErrWindow, and continue after Done.
func window(s *stage) {
	r := s.a.post(abi.OpWrite, 60*s.a.segment)
	for range 20 {
		s.a.post(abi.OpWrite, 60*s.a.segment)
	}
	err := s.a.issue(s.now)
	if pushes, pulls := s.a.conn.UnderWay(); !errors.Is(err, transport.ErrWindow) && !errors.Is(err, transport.ErrBlocked) || pushes == 0 || pulls != 0 {
		s.Fatalf("%v with %d packets and %d READs under way", err, pushes, pulls)
	}
	s.until(s.a.allOver)
	s.ended(r, abi.WCSuccess)
	if pushes, _ := s.a.conn.UnderWay(); pushes != 0 || !bytes.Equal(s.b.memory[:len(r.data)], s.a.requests[20].data) {
		s.Errorf("%d packets under way at the end, or other data", pushes)
	}
}

// blocked sends with very little credit. Issue must return ErrBlocked, Unblocked must follow, and
// everything must arrive.
func blocked(s *stage) {
	for i := range 10 {
		s.a.post([]abi.Opcode{abi.OpWrite, abi.OpRead}[i%2], 5*s.a.segment)
	}
	if err := s.a.issue(s.now); !errors.Is(err, transport.ErrBlocked) {
		s.Fatalf("%v with credit for a few packets", err)
	}
	s.until(s.a.allOver)
	for _, r := range s.a.requests {
		s.ended(r, abi.WCSuccess)
	}
	if s.a.acct.CreditWaits == 0 {
		s.Error("nobody counted the waits")
	}
}

// limitReads limits the READ packets in flight.
func limitReads(s *stage) {
	s.a.conn.LimitReads(2)
	s.a.post(abi.OpRead, 20*s.a.segment)
	most := 0
	s.until(func() bool {
		_, pulls := s.a.conn.UnderWay()
		most = max(most, pulls)
		return s.a.allOver()
	})
	if most > 2 {
		s.Errorf("%d under way", most)
	}
}

// forget drops requests in progress. The endpoint must hear nothing more of them.
func forget(s *stage) {
	for range 3 {
		s.a.post(abi.OpSend, 2*s.a.segment) // there is no receive
	}
	if s.can(transport.Waiting) {
		s.until(func() bool { return s.a.requests[0].notReady > 0 })
	} else {
		_ = s.a.issue(s.now)
	}
	s.a.call(s.a.conn.Forget)
	if pushes, pulls := s.a.conn.UnderWay(); pushes != 0 || pulls != 0 {
		s.Errorf("%d and %d packets under way", pushes, pulls)
	}
	gathered := s.a.gathered
	s.a.requests, s.a.next = nil, 0
	s.wait(1e9)
	if s.a.over != 0 || s.a.gathered != gathered {
		s.Error("forgotten requests go on")
	}
}

// drain drains one end. Requests of the other end must be refused with NotServing.
func drain(s *stage) {
	s.b.call(func() { s.b.conn.Drain(s.now) })
	s.b.finished = true
	r := s.a.post(abi.OpWrite, 8)
	s.until(func() bool { return s.a.allOver() && s.can(transport.Confirmation) || s.a.ended })
	if !s.a.ended {
		s.ended(r, abi.WCRetryExcErr)
	}
}

// closed closes one end. The other must find out, and the closed end must hear nothing more.
func closed(s *stage) { s.ends(func() { s.b.conn.Close(s.now) }) }

// aborted does what closed does, with Abort.
func aborted(s *stage) { s.ends(func() { s.b.conn.Abort(s.now) }) }

func (s *stage) ends(end func()) {
	s.b.receives = 1
	first := s.a.post(abi.OpSend, 8)
	s.until(s.a.allOver)
	s.ended(first, abi.WCSuccess)
	s.b.call(end)
	s.b.finished = true
	r := s.a.post(abi.OpWrite, 8)
	s.until(func() bool { return r.order != 0 && s.can(transport.Confirmation) || s.a.ended })
	if s.a.ended && s.a.endedWith != abi.WCRetryExcErr {
		s.Errorf("ended with %s", s.a.endedWith)
	} else if !s.a.ended {
		s.ended(r, abi.WCRetryExcErr)
	}
	s.wait(1e9)
}

// attachedOnce attaches a connection twice, which must fail.
func attachedOnce(s *stage) {
	if _, ok := s.A.Attach(&transport.Terms{Endpoint: s.b, QPN: 1, Peer: 2, PathMTU: 256, Account: &s.b.acct}); ok {
		s.Error("given away twice")
	}
}

// lacking asks for what the wire cannot do: a connection refuses such terms, and fails such requests
// and goes on.
func lacking(t *testing.T, open Open, features transport.Features) {
	o := Options{Ordered: true, PathMTU: 256}
	for f, ask := range map[transport.Features]func(*transport.Terms){
		transport.Unordered:    func(t *transport.Terms) { t.Unordered = true },
		transport.FailureAlone: func(t *transport.Terms) { t.InError = true },
		transport.Unreliable:   func(t *transport.Terms) { t.Unreliable = true },
		transport.XRC:          func(t *transport.Terms) { t.XRC = true },
	} {
		if features&f != 0 {
			continue
		}
		p := open(t, o)
		e := newEnd(t, p.A)
		terms := e.terms(&o, 17, 18)
		ask(&terms)
		if _, ok := p.A.Attach(&terms); ok {
			t.Errorf("feature %#x is lacking, and an end that needs it was attached", f)
		}
	}
	if features&transport.SendImm == 0 {
		s := open.stage(t, o)
		s.b.receives = 1
		r := s.a.post(abi.OpSendImm, 8)
		s.until(s.a.allOver)
		s.ended(r, abi.WCLocQPOpErr)
		s.a.next++
		r = s.a.post(abi.OpSend, 8)
		s.until(s.a.allOver)
		s.ended(r, abi.WCSuccess)
	}
}

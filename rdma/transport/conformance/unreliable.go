package conformance

import (
	"bytes"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// tries is how often a message of one packet is sent over a lossy network.
const tries = 100

// arrives sends a request until it arrives, and checks that it arrived whole. Over a lossy network
// a message of several packets need not arrive.
func (s *stage) arrives(op abi.Opcode, size int) {
	s.Helper()
	for n := 1; ; n++ {
		clear(s.b.memory)
		s.b.messages, s.b.receives = nil, max(s.b.receives, 1)
		r := s.a.post(op, size)
		r.WQE.RemoteAddr = 8
		s.until(s.a.allOver)
		s.ended(r, abi.WCSuccess)
		if want := max(1, (size+s.a.segment-1)/s.a.segment); r.done != want || r.Pending != 0 {
			s.Errorf("%s of %d bytes: %d packets done, %d pending, want %d", op, size, r.done, r.Pending, want)
		}
		if s.pass(5e6, func() bool { return s.arrived(r) }) {
			return
		}
		switch {
		case !s.Lossy, size <= s.a.segment && n == tries:
			s.Fatalf("%s of %d bytes: %d messages", op, size, len(s.b.messages))
		case size > s.a.segment:
			return
		}
	}
}

// arrived reports whether a request has arrived at the peer, and checks its contents.
func (s *stage) arrived(r *request) bool {
	s.Helper()
	size := len(r.data)
	if !r.TakesReceive() {
		return bytes.Equal(r.data, s.b.memory[8:8+size])
	}
	for _, m := range s.b.messages {
		got := m.data
		if r.WQE.Opcode == abi.OpWriteImm {
			got = s.b.memory[8 : 8+len(m.data)]
		}
		if len(m.data) != size || !bytes.Equal(r.data, got) || m.op != r.WQE.Opcode || m.failed != abi.WCSuccess || m.op != abi.OpSend && m.imm != r.WQE.Imm {
			s.Fatalf("%s of %d bytes: %s of %d bytes, %#x, %s", r.WQE.Opcode, size, m.op, len(m.data), m.imm, m.failed)
		}
	}
	return len(s.b.messages) == 1
}

// unreliableSizes does what sizes does, for the operations of unreliable connections.
func unreliableSizes(s *stage) {
	n := s.a.segment
	for _, size := range []int{0, 1, 2, 3, 4, 5, n - 1, n, n + 1, 2 * n, 10*n + 3} {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm, abi.OpWrite, abi.OpWriteImm} {
			s.arrives(op, size)
		}
	}
}

// unreliableOrder sends many messages in both directions at once. Those that arrive must do so in
// the order sent, once, with their own data.
func unreliableOrder(s *stage) {
	const count = 60
	longest := 1500
	if s.Lossy {
		longest = s.a.segment // a network that reorders loses nearly all longer messages
	}
	for _, e := range []*end{s.a, s.b} {
		e.receives = count
		for i := range count {
			e.post(abi.OpSendImm, i*37%longest)
		}
	}
	s.until(func() bool { return s.a.allOver() && s.b.allOver() })
	s.wait(100e6)
	for _, e := range []*end{s.a, s.b} {
		from := s.a
		if e == s.a {
			from = s.b
		}
		next := 0
		for _, m := range e.messages {
			for next < count && from.requests[next].WQE.Imm != m.imm {
				next++
			}
			if next == count || !bytes.Equal(m.data, from.requests[next].data) {
				s.Fatalf("message %#x is not what was sent, or in another order", m.imm)
			}
			next++
		}
		if n := len(e.messages); n == 0 || n < count && !s.Lossy {
			s.Errorf("%d of %d messages arrived", n, count)
		}
		for i, r := range from.requests {
			if r.Status != abi.WCSuccess {
				s.Fatalf("request %d: %s", i, r.Status)
			}
		}
	}
}

// unreliableNotReady sends before there is a receive. The message is lost, and nobody is told.
func unreliableNotReady(s *stage) {
	for _, op := range []abi.Opcode{abi.OpSend, abi.OpWriteImm} {
		r := s.a.post(op, 3*s.a.segment)
		s.until(s.a.allOver)
		s.ended(r, abi.WCSuccess)
		s.wait(5e6)
		if r.notReady != 0 || s.b.acct.RNRTx != 0 || len(s.b.messages) != 0 {
			s.Fatalf("%s: told %d times, %d answers, %d messages", op, r.notReady, s.b.acct.RNRTx, len(s.b.messages))
		}
		s.arrives(abi.OpSend, 9)
		s.b.receives, s.b.messages = 0, nil
	}
}

// unreliableRefused makes the peer refuse. It loses what it refuses, and the next message must
// arrive.
func unreliableRefused(s *stage) {
	for _, why := range []transport.Refusal{transport.Access, transport.Invalid, transport.Operation} {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm} {
			s := s.again()
			s.b.refuse, s.b.alone, s.b.receives = why, true, 1
			r := s.a.post(op, 2*s.a.segment)
			s.until(s.a.allOver)
			s.ended(r, abi.WCSuccess)
			s.wait(5e6)
			if len(s.b.messages) != 0 || len(s.b.refused) != 0 {
				s.Fatalf("%s: %d messages, refused %v", op, len(s.b.messages), s.b.refused)
			}
			s.b.refuse = transport.Accepted
			s.arrives(abi.OpSend, 8)
		}
	}
}

// unreliableGatherFails makes the memory of a request unreadable before it is sent. The connection
// must continue after the endpoint has called Forget.
func unreliableGatherFails(s *stage) {
	s.b.receives = 1
	s.a.post(abi.OpSend, 8)
	r := s.a.post(abi.OpSend, 8)
	r.gone = true
	s.until(s.a.allOver)
	s.ended(s.a.requests[0], abi.WCSuccess)
	s.ended(r, abi.WCLocProtErr)
	s.a.call(s.a.conn.Forget)
	s.a.requests, s.a.next, s.a.over = nil, 0, 0
	s.wait(5e6)
	s.arrives(abi.OpSend, 8)
}

// unreliablePeerGone sends to a closed peer. Requests must succeed, unless the connection ends.
func unreliablePeerGone(s *stage) {
	s.b.call(func() { s.b.conn.Close(s.now) })
	s.b.finished = true
	r := s.a.post(abi.OpWrite, 2*s.a.segment)
	s.until(func() bool { return s.a.allOver() || s.a.ended })
	if !s.a.ended {
		s.ended(r, abi.WCSuccess)
	}
}

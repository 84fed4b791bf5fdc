package roce

import (
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxAtomics is how many results of atomics are kept for a peer that did not get them; at least as
// many as it may have under way.
const maxAtomics = 128

// responder is the half of a connection that serves the requests of the peer.
type responder struct {
	expected wire.PSN // of the next packet
	msn      uint32   // messages complete, 24 bits
	message  uint32   // number of the next that takes a receive, from 1
	missed   bool     // the peer was told what is missing, or to come again: until that comes
	part     message
	refused  wire.Syndrome // of a request that the connection did not survive; 0: none

	answers ring.Queue[answer] // to READs and atomics, in the order of their PSNs
	spoiled bool               // the memory of the first of them is gone
	atomics []result           // ring, made when there is one
	ran     int                // atomics
	again   timer.Handle       // the front of answers may be sent then
	reply   reply
	marked  bool // a packet came with a mark of congestion: a CNP is due
	told    transport.Time
}

// message is the part of a message of several packets that came.
type message struct {
	kind  partKind
	bytes uint64
	left  uint32 // WRITE: that are to come
	addr  uint64 // WRITE: where the next goes
	rkey  uint32
}

type partKind uint8

const (
	noMessage partKind = iota
	sending
	writing
)

// answer is the response to a READ, or to an atomic.
type answer struct {
	psn      wire.PSN // of the next packet
	left     int      // packets
	begun    bool
	atomic   bool
	original uint64
	msn      uint32
	memory   transport.Memory
	addr     uint64
	length   uint32         // that is left
	at       transport.Time // not before
}

// result is what an atomic found.
type result struct {
	psn      wire.PSN
	original uint64
	msn      uint32
	present  bool
}

// reply is an acknowledgement that is due.
type reply struct {
	due      bool
	syndrome wire.Syndrome
	psn      wire.PSN
}

// acknowledge makes an acknowledgement due. One that refuses is not replaced by one that is about
// what came before.
func (s *responder) acknowledge(psn wire.PSN, syndrome wire.Syndrome) {
	if s.reply.due && !s.reply.syndrome.Acks() && syndrome.Acks() && psn.Sub(s.reply.psn) < 0 {
		return
	}
	s.reply = reply{due: true, syndrome: syndrome, psn: psn}
}

// result finds what the atomic with a PSN found, if it is kept.
func (s *responder) result(psn wire.PSN) *result {
	for i := range s.atomics {
		if r := &s.atomics[i]; r.present && r.psn == psn {
			return r
		}
	}
	return nil
}

// keep keeps the result of an atomic.
func (s *responder) keep(r result) {
	if s.atomics == nil {
		s.atomics = make([]result, maxAtomics)
	}
	s.atomics[s.ran%maxAtomics] = r
	s.ran++
}

// insert puts an answer in its place. One that is due already is not due twice, but begins anew
// where the peer asks it to.
func (s *responder) insert(a answer) {
	for i := range s.answers.Len() {
		x := s.answers.At(i)
		if d := a.psn.Sub(x.psn); d < x.left && a.psn.Add(a.left).Sub(x.psn) > 0 {
			if i == 0 {
				*x = a
			}
			return
		}
	}
	*s.answers.Push() = a
	for i := s.answers.Len() - 1; i > 0 && s.answers.At(i-1).psn.Sub(a.psn) > 0; i-- {
		*s.answers.At(i), *s.answers.At(i - 1) = *s.answers.At(i - 1), *s.answers.At(i)
	}
}

package roce

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

const (
	maxEntries = 256 // requests of a connection that are not answered
	maxRead    = 64  // response packets of one READ request
)

// requester is the half of a connection that sends requests.
//
//	            front          sent            end
//	──────────────┬─────────────┬───────────────┬──
//	   answered   │  under way  │ not sent yet, │
//	              │             │ or to be again│
type requester struct {
	*end
	credits *credit.Node // nil: none are needed

	entries       ring.Queue[entry]
	sent          int      // of entries
	flying        int      // PSNs of those
	psn           wire.PSN // of the next entry
	begun         bool     // psn is set
	ahead         wire.PSN // of the last packet that was sent once
	pushes, pulls int      // of entries: with data; READs and atomics
	reads         int      // that pulls may be
	blocked       bool     // waits for credit
	first         bool     // was told of some, and took none since
	kept          bool     // of that, want is kept for it
	want          credit.Cost
	parked        int // entries that have given back their credits, since the peer is not ready

	repeats uint64               // requests sent again
	gone    list.Node[requester] // in shared.gone: sent packets that nobody answers

	limit    limit
	traffic  cc.State
	paced    transport.Time // when the next packet may leave, an answer to the peer or a request
	pace     timer.Handle   // it may then
	quiet    int            // packets sent since an answer was asked for
	rewound  bool           // to the front, and nothing came since
	notReady bool           // the peer was not: nothing is sent until its timer ends
	timer    timer.Handle   // of the retry, or of a peer that was not ready
	heard    transport.Time // when something was answered, or the first packet under way was sent
	rto      transport.Time // of the next retry
	rtt      roundTrip
	dead     bool // a request failed: nothing more is sent
	lastRNR  bool // the peer's last word was that it is not ready
}

// entry is a request under way: a packet of a SEND or WRITE, an atomic, or a READ with all of its
// responses.
type entry struct {
	r       *transport.Request
	op      wire.Opcode // without service
	psn     wire.PSN    // the first it takes
	message wire.PSN    // number of its message, 24 bits
	packets int         // PSNs it takes
	got     int         // of a READ's responses
	offset  uint32      // of its data in the message
	length  uint32
	growing bool         // a READ that is not complete
	again   bool         // was sent before
	rnrs    int          // times that the peer was not ready
	failed  abi.WCStatus // its data is not to be had
	parked  bool         // has given back its credits until it is sent again
}

func (e *entry) end() wire.PSN { return e.psn.Add(e.packets) }

// next is the first PSN that is not answered.
func (e *entry) next() wire.PSN { return e.psn.Add(e.got) }

func (e *entry) read() bool { return e.op == wire.ReadRequest }

func (e *entry) pulls() bool { return !e.op.Info().Data }

// at is the entry that has a PSN, of some that there are; nil: none.
func (s *requester) at(psn wire.PSN) *entry {
	if psn.Sub(s.entries.At(0).psn) < 0 {
		return nil
	}
	for i := range s.entries.Len() {
		if e := s.entries.At(i); psn.Sub(e.end()) < 0 {
			return e
		}
	}
	return nil
}

// drop forgets all entries.
func (s *requester) drop() {
	for i := range s.entries.Len() {
		s.returnCredits(s.entries.At(i))
	}
	for s.entries.Len() > 0 {
		s.entries.Pop().r = nil
	}
	s.sent, s.flying, s.pushes, s.pulls = 0, 0, 0, 0
	s.notReady = false
	s.waitNoMore()
	s.release()
	s.stop(&s.timer)
	s.gone.Remove()
}

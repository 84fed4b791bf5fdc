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
	maxEntries = 256 // unanswered requests of a connection
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
	flying        int      // PSNs of these entries
	psn           wire.PSN // of the next entry
	begun         bool     // psn is set
	ahead         wire.PSN // PSN of the last packet sent at least once
	pushes, pulls int      // of entries: packets with data, READs and atomics
	reads         int      // limit of pulls
	blocked       bool     // waits for credit
	first         bool     // credit was offered, and none taken since
	kept          bool     // want is reserved for it
	want          credit.Cost
	parked        int // entries that released their credits because the peer is not ready

	repeats uint64               // requests sent again
	gone    list.Node[requester] // in shared.gone: packets were sent that nobody answers

	limit    limit
	traffic  cc.State
	paced    transport.Time // when the next packet may be sent, request or answer
	pace     timer.Handle   // armed until then
	quiet    int            // packets sent since the last one that asked for an answer
	rewound  bool           // to the first entry, and nothing was answered since
	notReady bool           // the peer was not ready: nothing is sent until its timer ends
	timer    timer.Handle   // of the retry, or of a peer that is not ready
	heard    transport.Time // when the last answer came, or the first packet in flight was sent
	rto      transport.Time // of the next retry
	rtt      roundTrip
	dead     bool // a request failed: nothing more is sent
	lastRNR  bool // the peer's last answer was that it is not ready
}

// entry is a request in progress: a packet of a SEND or WRITE, an atomic, or a READ with all of its
// responses.
type entry struct {
	r       *transport.Request
	op      wire.Opcode // without service
	psn     wire.PSN    // its first PSN
	message wire.PSN    // number of its message, 24 bits
	packets int         // number of its PSNs
	got     int         // number of a READ's responses that arrived
	offset  uint32      // of its data in the message
	length  uint32
	growing bool         // a READ to which parts may still be added
	again   bool         // it was sent before
	rnrs    int          // times that the peer was not ready
	failed  abi.WCStatus // its data could not be read
	parked  bool         // has released its credits until it is sent again
}

func (e *entry) end() wire.PSN { return e.psn.Add(e.packets) }

// next returns the first PSN that is not answered.
func (e *entry) next() wire.PSN { return e.psn.Add(e.got) }

func (e *entry) read() bool { return e.op == wire.ReadRequest }

func (e *entry) pulls() bool { return !e.op.Info().Data }

// at returns the entry with that PSN, nil if there is none. There must be entries.
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

// drop discards all entries.
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

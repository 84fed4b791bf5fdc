package rof

import (
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// served is a pull request of the peer, from its arrival to the acknowledgement of the response. It
// holds what each transmission of the response is made from. An atomic ran once, when it arrived;
// only its result is kept.
type served struct {
	busy     bool
	sent     bool              // the response was sent at least once
	opcode   wire.Opcode       // of the response
	refusal  transport.Refusal // complete in error
	sn       uint32
	rsn      uint32 // of the transaction
	sink     wire.STETH
	memory   transport.Memory // READ
	va       uint64
	length   uint32
	pad      uint8  // pad bytes behind the data
	original uint64 // atomic
}

// maxServed limits the unanswered pull requests of the peer on a connection.
const maxServed = 128

// servedPulls is the fixed set of pull requests that a connection serves at a time, allocated when
// the first one arrives. The tag of a response consists of slot and epoch.
type servedPulls struct {
	served     []served
	freeServed []uint16
	servedEra  uint32
	unsent     int // of served: requests whose response was never sent, so the peer cannot have it
}

func (p *servedPulls) initOnce() {
	if p.served != nil {
		return
	}
	p.served = make([]served, maxServed)
	p.freeServed = make([]uint16, 0, maxServed)
	p.dropServed()
}

// dropServed drops all requests. Falcon gets no more data for their responses.
func (p *servedPulls) dropServed() {
	p.servedEra++
	p.unsent = 0
	p.freeServed = p.freeServed[:0]
	for i := range p.served {
		p.served[i] = served{}
		p.freeServed = append(p.freeServed, uint16(len(p.served)-1-i))
	}
}

// serving returns the request of a tag, nil if it was dropped.
func (p *servedPulls) serving(tag uint64) *served {
	i := uint32(tag)
	if uint32(tag>>32) != p.servedEra || i >= uint32(len(p.served)) || !p.served[i].busy {
		return nil
	}
	return &p.served[i]
}

// answered records that the response to s is sent, for the first time or again.
func (p *servedPulls) answered(s *served) {
	if !s.sent {
		s.sent = true
		p.unsent--
	}
}

// endServed frees the slot of s, which is finished.
func (p *servedPulls) endServed(tag uint64, s *served) {
	p.answered(s)
	*s = served{}
	p.freeServed = append(p.freeServed, uint16(tag))
}

package rof

import (
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// served is a pull request of the peer between its arrival and the acknowledgement of the response:
// what every transmission of the response is made from. An atomic ran when it arrived, once; only
// its result is here.
type served struct {
	busy     bool
	sent     bool              // the response, at least once
	opcode   wire.Opcode       // of the response
	refusal  transport.Refusal // complete in error
	sn       uint32
	rsn      uint32 // of the transaction
	sink     wire.STETH
	memory   transport.Memory // READ
	va       uint64
	length   uint32
	pad      uint8  // bytes behind the data
	original uint64 // atomic
}

// maxServed is how many pull requests of the peer a connection has not answered, at most.
const maxServed = 128

// servedPulls is the fixed set of pull requests a connection serves at a time, made when the first
// one comes. A response's tag names slot and epoch.
type servedPulls struct {
	served     []served
	freeServed []uint16
	servedEra  uint32
	unsent     int // of them, whose response was never sent: the peer cannot have it
}

func (p *servedPulls) initOnce() {
	if p.served != nil {
		return
	}
	p.served = make([]served, maxServed)
	p.freeServed = make([]uint16, 0, maxServed)
	p.dropServed()
}

// dropServed forgets all of them; falcon gets no more data for their responses.
func (p *servedPulls) dropServed() {
	p.servedEra++
	p.unsent = 0
	p.freeServed = p.freeServed[:0]
	for i := range p.served {
		p.served[i] = served{}
		p.freeServed = append(p.freeServed, uint16(len(p.served)-1-i))
	}
}

// serving returns what tag names, nil when it was dropped.
func (p *servedPulls) serving(tag uint64) *served {
	i := uint32(tag)
	if uint32(tag>>32) != p.servedEra || i >= uint32(len(p.served)) || !p.served[i].busy {
		return nil
	}
	return &p.served[i]
}

// answered notes that the response to s is on its way, for the first time or again.
func (p *servedPulls) answered(s *served) {
	if !s.sent {
		s.sent = true
		p.unsent--
	}
}

// endServed frees the slot of s, of which nothing is needed any more.
func (p *servedPulls) endServed(tag uint64, s *served) {
	p.answered(s)
	*s = served{}
	p.freeServed = append(p.freeServed, uint16(tag))
}

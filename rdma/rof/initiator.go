package rof

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

const (
	maxPushes = 128 // pushes of a connection in flight with falcon
	maxPulls  = 64  // pulls of a connection in flight with falcon
)

// initiator is the half of a connection that sends requests.
//
// Each transaction in falcon is one segment. Its tag consists of the segment's slot and the epoch,
// which is incremented when the requests are dropped. Segments come from the engine's pool.
type initiator struct {
	*end

	segments      []*segment // by slot, nil if it is free
	free          []uint16   // slots
	epoch         uint32
	pushes, pulls int    // segments with falcon
	reads         int    // limit of pulls
	sn            uint32 // RBTH sequence number of the next request
	rmsn          uint32 // of the next SEND or WRITE with immediate
	pullRMSN      uint32 // of the next READ or atomic request
}

// segment is one request packet that falcon has.
type segment struct {
	r      *transport.Request
	rnrs   uint8        // receiver-not-ready answers
	status abi.WCStatus // set by Fill if the data cannot be read
	opcode wire.Opcode
	sn     uint32
	rmsn   uint32
	offset uint32 // of the data in the message
	length uint32
}

// begin starts the numbering of a new connection at 1 (RDMA over Falcon §8.2, §8.3.2).
func (i *initiator) begin(reads int) {
	i.segments = make([]*segment, maxPushes+maxPulls)
	i.free = make([]uint16, 0, len(i.segments))
	i.reads = reads
	i.sn, i.rmsn, i.pullRMSN = 1, 1, 1
	i.forget()
}

// forget drops the requests in progress. Falcon's answers to them are ignored from now on.
func (i *initiator) forget() {
	i.epoch++
	i.pushes, i.pulls = 0, 0
	i.free = i.free[:0]
	for n, s := range i.segments {
		if s != nil {
			i.segments[n] = nil
			i.release(s)
		}
		i.free = append(i.free, uint16(len(i.segments)-1-n))
	}
}

// nextTag returns the tag for the slot that keep will use. A slot must be free.
func (i *initiator) nextTag() uint64 { return uint64(i.epoch)<<32 | uint64(i.free[len(i.free)-1]) }

// keep copies s into a segment of the pool and stores that in the next free slot.
func (i *initiator) keep(s *segment) *segment {
	kept := i.e.segments.Get()
	*kept = *s
	i.segments[i.free[len(i.free)-1]] = kept
	i.free = i.free[:len(i.free)-1]
	return kept
}

// done frees a segment and its slot.
func (i *initiator) done(slot uint16) {
	i.release(i.segments[slot])
	i.segments[slot] = nil
	i.free = append(i.free, slot)
}

func (i *initiator) release(s *segment) {
	s.r = nil // the pool must not keep requests alive
	i.e.segments.Put(s)
}

// tagged returns the segment of a tag, nil if it was dropped.
func (i *initiator) tagged(tag uint64) *segment {
	if uint32(tag>>32) != i.epoch {
		return nil
	}
	return i.segments[uint32(tag)]
}

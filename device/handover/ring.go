package handover

import (
	"encoding/binary"
	"maps"
	"sync/atomic"
)

// Kind says what a frame is.
type Kind uint8

// Kinds.
const (
	Uplink    Kind = iota + 1 // a frame of the uplink, as it came
	Neighbour                 // the same, with a message of ARP or neighbour discovery
	Inside                    // a Falcon packet of a connection between two shards, in clear text
	Plain                     // a frame of plain IP for a port
	Group                     // a RoCEv2 packet to a multicast group, for functions
)

// class is which of the rings between two shards a kind has. What one is full of costs the others
// nothing.
func (k Kind) class() int {
	switch k {
	case Inside:
		return 1
	case Plain, Group:
		return 2
	}
	return 0
}

const classes = 3

// Header is what is known of a frame.
type Header struct {
	Kind Kind
	Flow uint32   // whom it is charged to, 24 bits
	A, B uint32   // of the kind's own
	Aux  [16]byte // the same
}

// Frame is one in a ring.
type Frame struct {
	Header
	Data []byte // in the ring, the consumer's until Done; it may be changed there
}

const (
	// Size is the room of a ring, bytes.
	Size = 1 << 20
	// MaxFrame is the longest frame, bytes.
	MaxFrame = 72 << 10
	// FlowFrames is how many frames of one flow wait in a ring at most.
	FlowFrames = 512

	recordHeader = 32 // length 32, kind 8, flow 24, A, B, Aux
	align        = 8
	skip         = ^uint32(0) // length of a record that only fills the end of the ring
	cacheLine    = 64
)

// ring is a bounded queue of records with one producer and one consumer. Positions count bytes for
// ever; a record never wraps around.
//
//	0                read              written        Size
//	│  free          │ record │ record │  free         │
//
// A flow never has more in a ring than it leaves free: so one alone has half of it at most, and
// there is always room for another. What it has, the producer counts; the records themselves tell
// what the consumer has given back.
type ring struct {
	from int // the shard that fills it
	buf  []byte

	_       [cacheLine]byte
	written atomic.Uint64    // the producer's; the consumer reads up to here
	seen    uint64           // the producer's: what it knows of read
	flows   map[uint32]*held // the producer's
	next    uint64           // the producer's: where the record at hand ends
	_       [cacheLine]byte
	read    atomic.Uint64 // the consumer's; the producer writes up to here
	taken   uint64        // the consumer's: what it has looked at, but not given back
	_       [cacheLine]byte
}

// held is what a flow has in a ring.
type held struct{ frames, bytes uint64 }

func newRing(from int) *ring {
	return &ring{from: from, buf: make([]byte, Size), flows: map[uint32]*held{}}
}

// put makes room for a frame of n bytes, nil if there is none. The frame is there with commit.
func (r *ring) put(h *Header, n int) []byte {
	need := uint64(recordHeader+n+align-1) &^ (align - 1)
	at := r.written.Load()
	f := r.flow(h.Flow)
	if left := Size - at%Size; left < need {
		if !r.room(f, at, need, left) {
			return nil
		}
		binary.LittleEndian.PutUint32(r.buf[at%Size:], skip)
		at += left
	} else if !r.room(f, at, need, 0) {
		return nil
	}
	f.frames++
	f.bytes += need
	r.next = at + need
	b := r.buf[at%Size:]
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.LittleEndian.PutUint32(b[4:], uint32(h.Kind)|h.Flow<<8)
	binary.LittleEndian.PutUint32(b[8:], h.A)
	binary.LittleEndian.PutUint32(b[12:], h.B)
	copy(b[16:recordHeader], h.Aux[:])
	return b[recordHeader : recordHeader+n : recordHeader+n]
}

// flow is what a flow has. One that has nothing is forgotten before there are too many.
func (r *ring) flow(id uint32) *held {
	f := r.flows[id]
	if f == nil {
		if len(r.flows) == maxFlows {
			maps.DeleteFunc(r.flows, func(_ uint32, f *held) bool { return f.frames == 0 })
		}
		f = &held{}
		r.flows[id] = f
	}
	return f
}

// maxFlows is more than there are records in a ring.
const maxFlows = Size/recordHeader + 1

// room reports whether there are n bytes from at on for a flow, behind some that are skipped.
func (r *ring) room(f *held, at, n, skipped uint64) bool {
	if r.fits(f, at+skipped, n) { // as far as was known
		return true
	}
	r.reclaim()
	return r.fits(f, at+skipped, n)
}

func (r *ring) fits(f *held, at, n uint64) bool {
	used := at + n - r.seen
	return used <= Size && f.frames < FlowFrames && f.bytes+n <= Size-used
}

// reclaim takes note of what the consumer has given back.
func (r *ring) reclaim() {
	for read := r.read.Load(); r.seen != read; {
		b := r.buf[r.seen%Size:]
		n := binary.LittleEndian.Uint32(b)
		if n == skip {
			r.seen += Size - r.seen%Size
			continue
		}
		size := uint64(recordHeader+n+align-1) &^ (align - 1)
		f := r.flows[binary.LittleEndian.Uint32(b[4:])>>8]
		f.frames--
		f.bytes -= size
		r.seen += size
	}
}

func (r *ring) commit() { r.written.Store(r.next) }

// take returns the next frame, false when there is none.
func (r *ring) take(f *Frame) bool {
	end := r.written.Load()
	if r.taken == end {
		return false
	}
	n := binary.LittleEndian.Uint32(r.buf[r.taken%Size:])
	if n == skip {
		r.taken += Size - r.taken%Size
		n = binary.LittleEndian.Uint32(r.buf[r.taken%Size:])
	}
	b := r.buf[r.taken%Size:]
	kind := binary.LittleEndian.Uint32(b[4:])
	f.Kind, f.Flow = Kind(kind), kind>>8
	f.A, f.B = binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	copy(f.Aux[:], b[16:recordHeader])
	f.Data = b[recordHeader : recordHeader+n : recordHeader+n]
	r.taken += uint64(recordHeader+n+align-1) &^ (align - 1)
	return true
}

// done gives back the room of all that was taken.
func (r *ring) done() {
	if r.taken != r.read.Load() {
		r.read.Store(r.taken)
	}
}

// empty reports whether nothing waits. The consumer may ask.
func (r *ring) empty() bool { return r.taken == r.written.Load() }

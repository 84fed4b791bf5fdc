package handover

import (
	"encoding/binary"
	"maps"
	"sync/atomic"
)

// Kind is the kind of a frame.
type Kind uint8

// Kinds.
const (
	Uplink    Kind = iota + 1 // a frame of the uplink, unchanged
	Neighbour                 // the same, with a message of ARP or neighbour discovery
	Local                     // a Falcon packet of a connection between two shards, in clear text
	Plain                     // a frame of plain IP for a port
	Group                     // a function's packet to a multicast group, for functions
)

// class returns which of the rings between two shards a kind uses. A full ring does not affect the
// other classes.
func (k Kind) class() int {
	switch k {
	case Local:
		return 1
	case Plain, Group:
		return 2
	}
	return 0
}

const classes = 3

// Header describes a frame.
type Header struct {
	Kind Kind
	Flow uint32   // function or peer that the frame is charged to, 24 bits
	A, B uint32   // meaning depends on the kind
	Aux  [16]byte // meaning depends on the kind
}

// Frame is a frame in a ring.
type Frame struct {
	Header
	Data []byte // in the ring; the consumer may read and change it until Done
}

const (
	// Size is the size of a ring, bytes.
	Size = 1 << 20
	// MaxFrame is the longest frame, bytes.
	MaxFrame = 72 << 10
	// FlowFrames is the most frames of one flow that may wait in a ring.
	FlowFrames = 512

	recordHeader = 32 // length 32, kind 8, flow 24, A, B, Aux
	align        = 8
	skip         = ^uint32(0) // length of a record that only fills the end of the ring
	cacheLine    = 64
)

// End is one shard's end of the handover: it sends to and receives from the other shards.
type End struct {
	shard int
	in    []*ring          // rings to this shard
	out   [][classes]*ring // rings to other shards, by shard; nil for itself
	open  *ring            // ring of the last Put
	told  uint32           // shards that were given something since Given, one bit each
	to    uint32           // shard of the last Put, as a bit
	at    int              // index in in of the ring whose turn it is
	left  int              // bytes left of that turn
}

// The turn of a ring ends after turnCost bytes. A frame counts for at least leastCost.
const (
	turnCost  = 32 << 10
	leastCost = 2 << 10
)

// New returns the ends of a NIC with n shards.
func New(n int) []*End {
	ends := make([]*End, n)
	for i := range ends {
		ends[i] = &End{shard: i, out: make([][classes]*ring, n), left: turnCost}
	}
	for i, from := range ends {
		for j, to := range ends {
			if i == j {
				continue
			}
			for class := range classes {
				r := newRing(i)
				from.out[j][class] = r
				to.in = append(to.in, r)
			}
		}
	}
	return ends
}

// Shards returns the number of shards, this one included.
func (e *End) Shards() int { return len(e.out) }

// Put makes room for a frame of n bytes for another shard. It returns nil if the ring is full, the
// frame's flow has used its part of the ring, or there is no such shard. The caller fills the room
// and then calls Commit.
func (e *End) Put(to int, h *Header, n int) []byte {
	if to == e.shard || to < 0 || to >= len(e.out) || n > MaxFrame {
		return nil
	}
	r := e.out[to][h.Kind.class()]
	b := r.Put(h, n)
	e.open, e.to = r, 1<<to
	return b
}

// Commit hands over the frame of the last Put.
func (e *End) Commit() {
	e.open.Commit()
	e.told |= e.to
}

// Given returns the shards that were given something since the last call, one bit each: they have
// to be woken.
func (e *End) Given() uint32 {
	told := e.told
	e.told = 0
	return told
}

// Take returns the next frame that another shard handed over, and the number of that shard; false
// if there is none. Rings with frames take turns. The frames are valid until Done.
func (e *End) Take(f *Frame) (from int, ok bool) {
	for range len(e.in) + 1 {
		r := e.in[e.at]
		if e.left > 0 && r.Take(f) {
			e.left -= max(len(f.Data), leastCost)
			return r.from, true
		}
		e.at, e.left = (e.at+1)%len(e.in), turnCost
	}
	return 0, false
}

// Done releases the frames that were taken.
func (e *End) Done() {
	for _, r := range e.in {
		r.Done()
	}
}

// Empty reports whether no frames wait.
func (e *End) Empty() bool {
	for _, r := range e.in {
		if !r.Empty() {
			return false
		}
	}
	return true
}

// ring is a bounded queue of frames with one producer and one consumer. Positions count bytes and
// never restart; a record never wraps around.
//
//	0                read              written        Size
//	│  free          │ record │ record │  free         │
//
// A flow may never use more of a ring than it leaves free: so one alone has at most half of it, and
// there is always room for another. The producer counts what each flow has; from the records it
// learns what the consumer has released.
type ring struct {
	from int // the producing shard
	buf  []byte

	_       [cacheLine]byte
	written atomic.Uint64    // written by the producer; the consumer reads up to here
	seen    uint64           // the producer's last value of read
	flows   map[uint32]*held // the producer's
	next    uint64           // the producer's: end of the current record
	_       [cacheLine]byte
	read    atomic.Uint64 // written by the consumer; the producer writes up to here
	taken   uint64        // the consumer's: end of what it has taken but not released
	_       [cacheLine]byte
}

// held is what a flow has in a ring.
type held struct{ frames, bytes uint64 }

// newRing makes an empty ring. from is the producer's number, for End.Take.
func newRing(from int) *ring {
	return &ring{from: from, buf: make([]byte, Size), flows: map[uint32]*held{}}
}

// Put makes room for a frame of n bytes; nil if there is none. The consumer sees the frame after
// Commit.
func (r *ring) Put(h *Header, n int) []byte {
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

// flow returns what a flow has. Flows that have nothing are removed before there are too many.
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

// maxFlows is more than the number of records that fit into a ring.
const maxFlows = Size/recordHeader + 1

// room reports whether there is room for n bytes of a flow at at, behind skipped bytes.
func (r *ring) room(f *held, at, n, skipped uint64) bool {
	if r.fits(f, at+skipped, n) { // by the last known value of read
		return true
	}
	r.reclaim()
	return r.fits(f, at+skipped, n)
}

func (r *ring) fits(f *held, at, n uint64) bool {
	used := at + n - r.seen
	return used <= Size && f.frames < FlowFrames && f.bytes+n <= Size-used
}

// reclaim updates the flows by what the consumer has released.
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

// Commit hands over the frame of the last Put.
func (r *ring) Commit() { r.written.Store(r.next) }

// Take returns the next frame; false if there is none. It is valid until Done.
func (r *ring) Take(f *Frame) bool {
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

// Done releases all frames that were taken.
func (r *ring) Done() {
	if r.taken != r.read.Load() {
		r.read.Store(r.taken)
	}
}

// Empty reports whether no frames wait. Only the consumer may call it.
func (r *ring) Empty() bool { return r.taken == r.written.Load() }

package handover

import (
	"encoding/binary"
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
)

// Header is what is known of a frame.
type Header struct {
	Kind Kind
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
	Size = 512 << 10
	// MaxFrame is the longest frame, bytes.
	MaxFrame = 72 << 10

	recordHeader = 32 // length, kind, A, B, Aux
	align        = 8
	skip         = ^uint32(0) // length of a record that only fills the end of the ring
	cacheLine    = 64
)

// ring is a bounded queue of records with one producer and one consumer. Positions count bytes for
// ever; a record never wraps around.
//
//	0                read              written        Size
//	│  free          │ record │ record │  free         │
type ring struct {
	buf []byte

	_       [cacheLine]byte
	written atomic.Uint64 // the producer's; the consumer reads up to here
	seen    uint64        // the producer's: what it knows of read
	next    uint64        // the producer's: where the record at hand ends
	_       [cacheLine]byte
	read    atomic.Uint64 // the consumer's; the producer writes up to here
	taken   uint64        // the consumer's: what it has looked at, but not given back
	_       [cacheLine]byte
}

func newRing() *ring { return &ring{buf: make([]byte, Size)} }

// put makes room for a frame of n bytes, nil if there is none. The frame is there with commit.
func (r *ring) put(h *Header, n int) []byte {
	need := uint64(recordHeader+n+align-1) &^ (align - 1)
	at := r.written.Load()
	if left := Size - at%Size; left < need {
		if !r.room(at, left+need) {
			return nil
		}
		binary.LittleEndian.PutUint32(r.buf[at%Size:], skip)
		at += left
	} else if !r.room(at, need) {
		return nil
	}
	r.next = at + need
	b := r.buf[at%Size:]
	binary.LittleEndian.PutUint32(b, uint32(n))
	b[4] = byte(h.Kind)
	binary.LittleEndian.PutUint32(b[8:], h.A)
	binary.LittleEndian.PutUint32(b[12:], h.B)
	copy(b[16:recordHeader], h.Aux[:])
	return b[recordHeader : recordHeader+n : recordHeader+n]
}

// room reports whether n bytes from at on are free.
func (r *ring) room(at, n uint64) bool {
	if at+n-r.seen > Size { // as far as was known
		r.seen = r.read.Load()
	}
	return at+n-r.seen <= Size
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
	f.Kind = Kind(b[4])
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

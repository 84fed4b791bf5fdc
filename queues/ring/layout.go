package ring

import "math/bits"

// Offsets in an area. First comes the driver's cache line, then the device's, then the entries.
const (
	HeaderSize = 128

	offProducer   = 0  // send and receive queue: driver's word
	offConsumer   = 64 // send and receive queue: device's words
	offEventIndex = 68

	offCQConsumer = 0  // completion queue: driver's word
	offCQProducer = 64 // completion queue: device's word
	offCQArm      = 72 // completion queue: driver's word in the device's line, where the device reads it without another cache miss
)

// Completion entries.
const (
	CQEntrySize    = 64      // bytes
	AdminEntrySize = 128     // bytes, of admin commands and their completions
	tailSize       = 8       // size of the last word of an entry, which holds the phase
	phaseBit       = 1 << 56 // in that word

	statusOffset  = 28     // of the bytes that show whether an entry failed or is solicited
	solicitedFlag = 1 << 7 // in the third of these bytes
)

// The arm word of a completion queue, with the index in the low half.
const (
	armSolicited = 1 << 32
	armNumber    = 33 // lowest bit of the arming's number
)

// Layout describes the memory layout of one queue.
type Layout struct {
	log2   uint8
	stride uint32
}

// QueueLayout returns the layout of a send or receive queue of 2^log2Entries entries of
// 2^log2Stride bytes. log2Entries is at most 30, log2Stride at most 16.
func QueueLayout(log2Entries, log2Stride uint8) Layout {
	return Layout{log2: min(log2Entries, 30), stride: 1 << min(log2Stride, 16)}
}

// CQLayout returns the layout of a completion queue of 2^log2Entries entries.
func CQLayout(log2Entries uint8) Layout {
	return Layout{log2: min(log2Entries, 30), stride: CQEntrySize}
}

// AdminLayout returns the layout of both admin queues, whose number of entries is a power of two.
func AdminLayout(entries uint32) Layout {
	return Layout{log2: uint8(bits.Len32(max(entries, 1)) - 1), stride: AdminEntrySize}
}

// Entries returns the number of slots.
func (l Layout) Entries() uint32 { return 1 << l.log2 }

// Stride returns the bytes of a slot.
func (l Layout) Stride() uint32 { return l.stride }

// Size returns the bytes of the whole area.
func (l Layout) Size() uint64 { return HeaderSize + uint64(l.Entries())*uint64(l.stride) }

// slot returns the offset of the entry with free-running index i.
func (l Layout) slot(i uint32) uint64 {
	return HeaderSize + uint64(i&(l.Entries()-1))*uint64(l.stride)
}

// tail returns the offset of the word with the phase of the completion with free-running index i.
func (l Layout) tail(i uint32) uint64 { return l.slot(i) + uint64(l.stride) - tailSize }

// phase returns the phase bit, in place, of the entry with free-running index i.
func (l Layout) phase(i uint32) uint64 {
	if i>>l.log2&1 == 0 {
		return phaseBit
	}
	return 0
}

// between returns how far producer is ahead of consumer, and false if that is more than the queue
// holds.
func (l Layout) between(consumer, producer uint32) (uint32, bool) {
	n := producer - consumer
	return n, n <= l.Entries()
}

package tape

import (
	"encoding/binary"
	"hash/crc32"
)

// Payload says what a tape keeps of payload: of bytes by which an owner decides nothing. What is not
// kept is zeros when it is played, so it is in no sum either.
type Payload uint8

// What is kept of payload.
const (
	Digest Payload = iota // a CRC-32C of each piece
	Whole
	None
)

var payloads = [...]string{"digest", "whole", "none"}

// String names it, as users write it.
func (p Payload) String() string { return payloads[min(int(p), len(payloads)-1)] }

// ParsePayload returns what is kept by its name.
func ParsePayload(name string) (p Payload, ok bool) {
	for i, s := range payloads {
		if s == name {
			return Payload(i), true
		}
	}
	return 0, false
}

// Part passes b, whose length the owner knows. Its first head bytes are no payload, which only a tape
// that records has to be told. All bytes stand behind their number, so that a tape can be read by
// somebody who knows no lengths.
func (t *Tape) Part(b []byte, head int) {
	switch {
	case !t.plays:
		t.PutPart(b, head)
		return
	case t.loose != nil && t.loose.blank:
		clear(b)
		t.loose.out = t.mode.append(t.loose.out, b, len(b))
		return
	}
	size, kept := t.part()
	if size != uint64(len(b)) {
		t.Differs("the recording has %d bytes where %d are read", size, len(b))
	}
	clear(b[copy(b, kept):])
}

// PutPart writes bytes, of which the first head are no payload.
func (t *Tape) PutPart(b []byte, head int) { t.b = t.mode.append(t.b, b, head) }

func (p Payload) append(to, b []byte, head int) []byte {
	if p == Whole {
		head = len(b)
	}
	to = binary.AppendUvarint(to, uint64(len(b)))
	to = binary.AppendUvarint(to, uint64(head))
	to = append(to, b[:head]...)
	if p == Digest && head < len(b) {
		to = binary.LittleEndian.AppendUint32(to, crc32.Checksum(b[head:], castagnoli))
	}
	return to
}

// Keeps returns what the tape keeps of payload.
func (t *Tape) Keeps() Payload { return t.mode }

// part reads what PutPart wrote: the number of bytes, and the first of them.
func (t *Tape) part() (size uint64, kept []byte) {
	size, kept = t.Uint(), t.Bytes()
	if uint64(len(kept)) > size {
		t.Differs("the recording has %d of %d bytes", len(kept), size)
	}
	if t.mode == Digest && uint64(len(kept)) < size {
		t.bytes(4)
	}
	return size, kept
}

// maxPart is more than any frame has.
const maxPart = 1 << 17

// GetPart returns what PutPart wrote, in memory of its own.
func (t *Tape) GetPart() []byte {
	size, kept := t.part()
	if size > maxPart {
		t.Differs("the recording has a frame of %d bytes", size)
	}
	b := make([]byte, size)
	copy(b, kept)
	return b
}

// OutPart sums bytes that go out, of which the first head are no payload. checksumAt is where they have a
// checksum of payload, of 16 bits; 0: they have none.
func (t *Tape) OutPart(c Class, b []byte, head, checksumAt int) {
	switch {
	case !t.Active():
	case t.mode == Whole:
		t.Out(c, b)
	default:
		t.OutUint(c, uint64(len(b)))
		if checksumAt > 0 && checksumAt+2 <= head {
			t.Out(c, b[:checksumAt])
			t.Out(c, b[checksumAt+2:head])
			return
		}
		t.Out(c, b[:head])
	}
}

// OutPayload sums a number that is payload.
func (t *Tape) OutPayload(c Class, v uint64) {
	if t.Active() && t.mode == Whole {
		t.OutUint(c, v)
	}
}

package ib

import "slices"

// Syndrome is the meaning of an acknowledgement (IBA table 45): the kind in bits 5 and 6, its value
// in the five bits below. RDMA over Falcon sends the NAKs among them.
type Syndrome uint8

// Syndromes.
const (
	SynAck       Syndrome = 0x1f // acknowledged; the five bits are credits, and this value means that they do not count
	SynRNR       Syndrome = 0x20 // receiver not ready; the five bits are the timer
	SynSequence  Syndrome = 0x60 // NAK: an earlier PSN is missing
	SynInvalid   Syndrome = 0x61 // NAK: invalid request
	SynAccess    Syndrome = 0x62 // NAK: remote access error
	SynOperation Syndrome = 0x63 // NAK: remote operational error
)

// Acks reports whether the syndrome is an acknowledgement, with any credits.
func (s Syndrome) Acks() bool { return s&0x60 == 0 }

// credits holds the values that the five bits of an acknowledgement encode (IBA table 46).
var credits = [...]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// SynCredits returns an acknowledgement with n credits, or the next lower number that can be
// encoded.
func SynCredits(n int) Syndrome {
	i, exact := slices.BinarySearch(credits[:], n)
	if !exact {
		i--
	}
	return Syndrome(i)
}

// Credits returns the credits of an acknowledgement. counted is false if credits do not count.
func (s Syndrome) Credits() (n int, counted bool) {
	if s &= 0x1f; s == SynAck {
		return 0, false
	}
	return credits[s], true
}

// NotReady reports whether the receiver was not ready, and the timer in the encoding of IBA table
// 46.
func (s Syndrome) NotReady() (timer uint8, ok bool) { return uint8(s & 0x1f), s&0x60 == SynRNR }

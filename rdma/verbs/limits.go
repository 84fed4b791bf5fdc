package verbs

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Upper bounds of limits.
const (
	MaxReadAtomic = 64   // READ and atomic packets in flight per QP
	MaxDatagram   = 4096 // bytes, the largest MTU
)

// Limits bounds what one function may hold.
type Limits struct {
	Objects       Counts
	Links         int // for datagrams, that other functions may open
	MTU           int // bytes of a datagram, at most
	PageListBytes int // host memory for the page lists of all MRs
	QPEntries     int // entries of a send or receive queue
	CQEntries     int // entries of a completion queue
	SGEs          int // SGEs of one work request, at most 64
	Inline        int // inline bytes of one work request, at most 1024
	ReadAtomic    int // READ and atomic packets in flight per QP, 1 to 64
}

// WithDefaults returns l with zero limits replaced by the defaults, powers of two rounded down, and
// every limit cut to what the ABI and this engine support.
func (l Limits) WithDefaults() Limits {
	fill := func(v *int, initial, most int) {
		if *v <= 0 {
			*v = initial
		}
		*v = min(*v, most)
	}
	for k := range abi.NumObjects {
		fill(&l.Objects[k], int(k.Info().Initial), tables[k].most)
	}
	fill(&l.PageListBytes, 64<<20, 1<<30) // registers 64 GiB of scattered pages
	fill(&l.Links, 256, 1<<16)
	fill(&l.MTU, MaxDatagram, MaxDatagram)
	fill(&l.QPEntries, 4096, 1<<abi.MaxQueueLog2)
	fill(&l.CQEntries, 1<<18, 1<<abi.MaxQueueLog2)
	fill(&l.SGEs, 16, 64)
	fill(&l.Inline, 224, 1024)
	fill(&l.ReadAtomic, MaxReadAtomic, MaxReadAtomic)
	l.QPEntries = powerOfTwo(l.QPEntries)
	l.CQEntries = powerOfTwo(l.CQEntries)
	return l
}

// powerOfTwo returns the largest power of two not above n ≥ 1.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

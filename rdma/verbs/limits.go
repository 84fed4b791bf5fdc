package verbs

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// What no limit can be above.
const (
	MaxReadAtomic = 64   // READ and atomic packets in flight per QP
	MaxDatagram   = 4096 // bytes, the largest MTU
)

// Limits bounds what one function may hold.
type Limits struct {
	PDs, MRs, CQs, QPs int // objects
	MWs, SRQs, XRCDs   int
	AHs                int
	Links              int // for datagrams, that other functions may open
	MTU                int // bytes of a datagram, at most
	PageListBytes      int // host memory for the page lists of all MRs
	QPEntries          int // entries of a send or receive queue
	CQEntries          int // entries of a completion queue
	SGEs               int // SGEs of one work request, at most 64
	Inline             int // inline bytes of one work request, at most 1024
	ReadAtomic         int // READ and atomic packets in flight per QP, 1 to 64
}

// DefaultLimits are the limits of a function nobody configured.
var DefaultLimits = Limits{
	PDs: 256, MRs: 4096, CQs: 512, QPs: 256, MWs: 4096, SRQs: 256, XRCDs: 64, AHs: 4096, Links: 256, MTU: 4096,
	PageListBytes: 64 << 20, // registers 64 GiB of scattered pages
	QPEntries:     4096, CQEntries: 65536,
	SGEs: 16, Inline: 224, ReadAtomic: MaxReadAtomic,
}

// WithDefaults returns l with zero fields replaced by DefaultLimits, powers of two rounded down and
// everything cut to what the ABI and this engine can do.
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits
	fill := func(v *int, def, most int) {
		if *v <= 0 {
			*v = def
		}
		*v = min(*v, most)
	}
	fill(&l.PageListBytes, d.PageListBytes, 1<<30)
	fill(&l.PDs, d.PDs, 1<<20)
	fill(&l.MRs, d.MRs, 1<<20)
	fill(&l.MWs, d.MWs, 1<<20)
	fill(&l.CQs, d.CQs, 1<<20)
	fill(&l.QPs, d.QPs, 1<<16-2)
	fill(&l.SRQs, d.SRQs, 1<<16-1)
	fill(&l.XRCDs, d.XRCDs, 1<<16-1)
	fill(&l.AHs, d.AHs, 1<<20)
	fill(&l.Links, d.Links, 1<<16)
	fill(&l.MTU, d.MTU, MaxDatagram)
	fill(&l.QPEntries, d.QPEntries, 1<<abi.MaxQueueLog2)
	fill(&l.CQEntries, d.CQEntries, 1<<abi.MaxQueueLog2)
	fill(&l.SGEs, d.SGEs, 64)
	fill(&l.Inline, d.Inline, 1024)
	fill(&l.ReadAtomic, d.ReadAtomic, MaxReadAtomic)
	l.QPEntries = powerOfTwo(l.QPEntries)
	l.CQEntries = powerOfTwo(l.CQEntries)
	return l
}

// powerOfTwo is the largest power of two not above n ≥ 1.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

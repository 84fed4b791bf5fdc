package psp

import "sync/atomic"

// spiTable finds issued SAs by their SPI. One goroutine changes it; any number of others look
// something up meanwhile, without a lock: chains are replaced, never changed, and growing makes all
// of them anew.
type spiTable struct {
	chains atomic.Pointer[[]chain]
	count  int // of the goroutine that changes it
}

type chain struct{ first atomic.Pointer[spiEntry] }

type spiEntry struct {
	sa   *rxSA
	next *spiEntry
}

const minChains = 16 // a power of two

func newSPITable() *spiTable {
	t := &spiTable{}
	chains := make([]chain, minChains)
	t.chains.Store(&chains)
	return t
}

// of is the chain of an SPI. SPIs are numbered through, so chains are short.
func of(chains []chain, spi uint32) *chain { return &chains[int(spi)&(len(chains)-1)] }

func (t *spiTable) find(spi uint32) *rxSA {
	for e := of(*t.chains.Load(), spi).first.Load(); e != nil; e = e.next {
		if e.sa.spi == spi {
			return e.sa
		}
	}
	return nil
}

func (t *spiTable) add(sa *rxSA) {
	if chains := *t.chains.Load(); t.count == len(chains) {
		grown := make([]chain, 2*len(chains))
		t.each(func(sa *rxSA) { of(grown, sa.spi).add(sa) })
		t.chains.Store(&grown)
	}
	of(*t.chains.Load(), sa.spi).add(sa)
	t.count++
}

func (c *chain) add(sa *rxSA) { c.first.Store(&spiEntry{sa, c.first.Load()}) }

// remove takes an SPI out, if it is there, and ends it for those who hold it.
func (t *spiTable) remove(spi uint32) {
	sa := t.find(spi)
	if sa == nil {
		return
	}
	var rest *spiEntry
	c := of(*t.chains.Load(), spi)
	for e := c.first.Load(); e != nil; e = e.next {
		if e.sa != sa {
			rest = &spiEntry{e.sa, rest}
		}
	}
	c.first.Store(rest)
	sa.ended.Store(true)
	t.count--
}

func (t *spiTable) each(f func(*rxSA)) {
	chains := *t.chains.Load()
	for i := range chains {
		for e := chains[i].first.Load(); e != nil; e = e.next {
			f(e.sa)
		}
	}
}

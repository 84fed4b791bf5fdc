package table

import (
	"hash/maphash"
	"sync/atomic"
)

// Table maps keys to values. Make it with New.
type Table[K comparable, V any] struct {
	seed   maphash.Seed
	chains atomic.Pointer[[]chain[K, V]]
	count  int // used by the owner only
}

type chain[K comparable, V any] struct{ first atomic.Pointer[entry[K, V]] }

type entry[K comparable, V any] struct {
	key   K
	value V
	next  *entry[K, V]
}

const minChains = 16 // a power of two

// New returns an empty table.
func New[K comparable, V any]() *Table[K, V] {
	t := &Table[K, V]{seed: maphash.MakeSeed()}
	t.make(minChains)
	return t
}

func (t *Table[K, V]) make(n int) []chain[K, V] {
	chains := make([]chain[K, V], n)
	t.chains.Store(&chains)
	return chains
}

func (t *Table[K, V]) chain(chains []chain[K, V], k K) *chain[K, V] {
	return &chains[maphash.Comparable(t.seed, k)&uint64(len(chains)-1)]
}

// Find returns the value of a key, if it is in the table. Any goroutine may call it.
func (t *Table[K, V]) Find(k K) (v V, ok bool) {
	for e := t.chain(*t.chains.Load(), k).first.Load(); e != nil; e = e.next {
		if e.key == k {
			return e.value, true
		}
	}
	return v, false
}

// Set sets the value of a key.
func (t *Table[K, V]) Set(k K, v V) {
	chains := *t.chains.Load()
	c := t.chain(chains, k)
	rest, had := c.without(k)
	if !had {
		if t.count++; t.count > len(chains) {
			c = t.chain(t.grow(chains), k)
			rest = c.first.Load()
		}
	}
	c.first.Store(&entry[K, V]{k, v, rest})
}

// grow doubles the number of chains. Readers use the old chains until the new ones are complete.
func (t *Table[K, V]) grow(old []chain[K, V]) []chain[K, V] {
	chains := make([]chain[K, V], 2*len(old))
	for i := range old {
		for e := old[i].first.Load(); e != nil; e = e.next {
			c := t.chain(chains, e.key)
			c.first.Store(&entry[K, V]{e.key, e.value, c.first.Load()})
		}
	}
	t.chains.Store(&chains)
	return chains
}

// without returns the chain's entries except that of k, and whether there was one.
func (c *chain[K, V]) without(k K) (rest *entry[K, V], had bool) {
	first := c.first.Load()
	for e := first; e != nil; e = e.next {
		had = had || e.key == k
	}
	if !had {
		return first, false
	}
	for e := first; e != nil; e = e.next {
		if e.key != k {
			rest = &entry[K, V]{e.key, e.value, rest}
		}
	}
	return rest, true
}

// Delete removes a key, if it is in the table.
func (t *Table[K, V]) Delete(k K) {
	c := t.chain(*t.chains.Load(), k)
	rest, had := c.without(k)
	if !had {
		return
	}
	t.count--
	if c.first.Store(rest); t.count == 0 {
		t.make(minChains)
	}
}

// Len returns the number of keys. Only the owner may call it.
func (t *Table[K, V]) Len() int { return t.count }

// Each calls f for each key, in no order. f may change the table; Each still visits what was there
// before. Any goroutine may call it. Of changes made meanwhile it may or may not see the effect.
func (t *Table[K, V]) Each(f func(K, V)) {
	chains := *t.chains.Load()
	for i := range chains {
		for e := chains[i].first.Load(); e != nil; e = e.next {
			f(e.key, e.value)
		}
	}
}

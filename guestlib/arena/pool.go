package arena

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrClosed is returned by allocations from a closed Pool.
var ErrClosed = errors.New("closed")

// Pool allocates pages from a Source, first fit.
type Pool struct {
	mu     sync.Mutex
	src    Source
	chunks []*chunk
	inUse  int // pages, including those of kept
	closed bool
	life   int      // number of calls of Hold
	held   bool     // Hold was called, and Release was not called since
	kept   []*Block // freed since Hold
}

type chunk struct {
	Chunk
	free []extent // ascending, never adjacent
}

type extent struct{ first, n int } // pages

// NewPool returns a pool of memory from src. The pool owns src.
func NewPool(src Source) *Pool { return &Pool{src: src} }

// Block is allocated memory: contiguous in this process, whole pages for the device.
type Block struct {
	pool *Pool
	in   *chunk
	at   extent
	size int
	life int // Pool.life when the block was allocated
}

// Alloc returns zeroed memory of n bytes, 1 or more, starting at a page. It grows the pool when
// needed.
func (p *Pool) Alloc(n int) (*Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alloc(n)
}

// Store returns new memory with a copy of data, which has at least one byte. Unlike Alloc followed
// by copy, it is safe against a concurrent Close.
func (p *Pool) Store(data []byte) (*Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.alloc(len(data))
	if err != nil {
		return nil, err
	}
	copy(b.Bytes(), data)
	return b, nil
}

func (p *Pool) alloc(n int) (*Block, error) {
	if n <= 0 {
		return nil, fmt.Errorf("device memory: cannot allocate %d bytes; ask for 1 or more", n)
	}
	if p.closed {
		return nil, ErrClosed
	}
	need := pages(n)
	for _, c := range p.chunks {
		if at, ok := c.take(need); ok {
			return p.block(c, at, n), nil
		}
	}
	grown, err := p.src.Grow(n)
	if err != nil {
		return nil, err
	}
	c := &chunk{Chunk: grown, free: []extent{{0, len(grown.Addrs)}}}
	p.chunks = append(p.chunks, c)
	at, ok := c.take(need)
	if !ok {
		return nil, &ExhaustedError{Want: n, Limit: len(grown.Mem)}
	}
	return p.block(c, at, n), nil
}

func (p *Pool) block(c *chunk, at extent, n int) *Block {
	p.inUse += at.n
	clear(c.Mem[at.first*PageSize : (at.first+at.n)*PageSize])
	return &Block{pool: p, in: c, at: at, size: n, life: p.life}
}

// Hold records that the device was lost and may continue to access all memory that is allocated
// now. Until Release, blocks that are allocated now are not reused after they are freed.
func (p *Pool) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life++
	p.held = true
}

// Release records that the device no longer accesses memory from before the last Hold.
func (p *Pool) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = false
	for _, b := range p.kept {
		p.inUse -= b.at.n
		b.in.put(b.at)
	}
	p.kept = nil
}

// InUse returns the number of bytes allocated and not freed, in whole pages.
func (p *Pool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse * PageSize
}

// Close returns all memory to the system. Bytes of blocks must not be accessed any more.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.chunks = nil
	return p.src.Close()
}

// Bytes returns the block's memory, with the requested length.
func (b *Block) Bytes() []byte {
	off := b.at.first * PageSize
	return b.in.Mem[off : off+b.size : off+b.size]
}

// Pages returns the device addresses of the block's pages. The caller must not change them.
func (b *Block) Pages() []uint64 { return b.in.Addrs[b.at.first : b.at.first+b.at.n] }

// Free frees the block. The program must not access Bytes any more. Neither must the device, unless
// the pool holds the memory (Hold). A second call does nothing.
func (b *Block) Free() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	b.free()
}

func (b *Block) free() {
	if b.at.n == 0 {
		return
	}
	if p := b.pool; p.held && b.life < p.life {
		p.kept = append(p.kept, &Block{in: b.in, at: b.at})
	} else {
		p.inUse -= b.at.n
		b.in.put(b.at)
	}
	b.at = extent{}
	b.size = 0
}

func (c *chunk) take(n int) (extent, bool) {
	for i, e := range c.free {
		if e.n < n {
			continue
		}
		if e.n == n {
			c.free = slices.Delete(c.free, i, i+1)
		} else {
			c.free[i] = extent{e.first + n, e.n - n}
		}
		return extent{e.first, n}, true
	}
	return extent{}, false
}

func (c *chunk) put(e extent) {
	i, _ := slices.BinarySearchFunc(c.free, e.first, func(f extent, first int) int { return f.first - first })
	if i < len(c.free) && e.first+e.n == c.free[i].first { // merge with the next extent
		e.n += c.free[i].n
		c.free = slices.Delete(c.free, i, i+1)
	}
	if i > 0 && c.free[i-1].first+c.free[i-1].n == e.first { // merge with the previous extent
		c.free[i-1].n += e.n
		return
	}
	c.free = slices.Insert(c.free, i, e)
}

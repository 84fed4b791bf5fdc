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
	inUse  int // pages, those kept too
	closed bool
	life   int      // counts the calls of Hold
	held   bool     // since the last one
	kept   []*Block // freed meanwhile
}

type chunk struct {
	Chunk
	free []extent // ascending, never adjacent
}

type extent struct{ first, n int } // pages

// NewPool makes a pool over src and takes ownership of it.
func NewPool(src Source) *Pool { return &Pool{src: src} }

// Block is allocated memory: contiguous in this process, whole pages for the device.
type Block struct {
	pool *Pool
	in   *chunk
	at   extent
	size int
	life int // of the pool when it was allocated
}

// Alloc returns zeroed memory of n bytes, 1 or more, starting at a page. It grows the pool when
// needed.
func (p *Pool) Alloc(n int) (*Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alloc(n)
}

// Store returns memory that holds a copy of data, of at least one byte. Unlike Alloc and a copy, it
// is safe against a concurrent Close.
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

// Hold says that the device may go on reaching what is allocated now, whatever becomes of it: it was
// lost. Until Release the blocks of these that are freed are not given out again.
func (p *Pool) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life++
	p.held = true
}

// Release says that the device has let go of all memory of before the last Hold.
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

// InUse returns the bytes allocated and not freed, in whole pages.
func (p *Pool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse * PageSize
}

// Close gives all memory back to the system. Bytes of blocks must not be touched any more.
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

// Bytes is the block's memory, of the length asked for.
func (b *Block) Bytes() []byte {
	off := b.at.first * PageSize
	return b.in.Mem[off : off+b.size : off+b.size]
}

// Pages returns the device addresses of the block's pages. The caller must not change them.
func (b *Block) Pages() []uint64 { return b.in.Addrs[b.at.first : b.at.first+b.at.n] }

// Free gives the block back. Bytes must not be touched any more, by the device neither, unless the
// pool knows that it may (Hold). Freeing twice does nothing.
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
	if i < len(c.free) && e.first+e.n == c.free[i].first { // joins the next one
		e.n += c.free[i].n
		c.free = slices.Delete(c.free, i, i+1)
	}
	if i > 0 && c.free[i-1].first+c.free[i-1].n == e.first { // joins the one before
		c.free[i-1].n += e.n
		return
	}
	c.free = slices.Insert(c.free, i, e)
}

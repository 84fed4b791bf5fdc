package vring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Memory is the guest's memory by guest-physical address; *queues.Memory
// implements it. Load32 and Store32 are atomic and take addresses that are
// multiples of four.
type Memory interface {
	Read(addr uint64, dst []byte) error
	Write(addr uint64, src []byte) error
	Load32(addr uint64) (uint32, error)
	Store32(addr uint64, v uint32) error
}

// ErrQueue is wrapped by every error a driver can cause.
var ErrQueue = errors.New("virtqueue broken by its driver")

// MaxSize is the largest split ring, Virtio §2.7.
const MaxSize = 32768

// maxChain bounds the descriptors of one chain. Linux uses at most 2 for a
// vsock packet on these queues; 128 is the whole ring of QEMU's device.
const maxChain = 128

// Descriptor flags, Virtio §2.7.5.
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4

	availNoInterrupt = 1
)

// Config places a ring. Addresses are guest-physical.
type Config struct {
	Size              uint16
	Desc, Avail, Used uint64
	Base              uint16 // index of the next available entry to take
}

// Queue is one split virtqueue.
type Queue struct {
	mem   Memory
	cfg   Config
	avail uint16 // next available entry
	used  uint16 // next used entry
	chain Chain
	buf   [16]byte // for one entry; on the heap with the queue
}

// Chain is one descriptor chain, copied. It is valid until the next Peek.
type Chain struct {
	head     uint16
	readable []segment // written by the driver, for the device to read
	writable []segment
	readLen  int
	writeLen int
	buf      [maxChain]segment
}

type segment struct {
	addr uint64
	len  uint32
}

// New runs a ring from cfg.Base on. The used index is taken from guest memory.
func New(mem Memory, cfg Config) (*Queue, error) {
	if cfg.Size == 0 || cfg.Size&(cfg.Size-1) != 0 { // what is larger than MaxSize is none, too
		return nil, fmt.Errorf("%w: size %d is no power of two up to %d", ErrQueue, cfg.Size, MaxSize)
	}
	if cfg.Desc%16 != 0 || cfg.Avail%2 != 0 || cfg.Used%4 != 0 {
		return nil, fmt.Errorf("%w: misaligned parts: descriptors %#x, available %#x, used %#x (Virtio §2.7 wants 16, 2, 4)", ErrQueue, cfg.Desc, cfg.Avail, cfg.Used)
	}
	n := uint64(cfg.Size)
	for _, part := range [3][2]uint64{{cfg.Desc, 16 * n}, {cfg.Avail, 6 + 2*n}, {cfg.Used, 6 + 8*n}} {
		if _, wraps := bits.Add64(part[0], part[1], 0); wraps != 0 {
			return nil, fmt.Errorf("%w: part at %#x wraps around", ErrQueue, part[0])
		}
	}
	q := &Queue{mem: mem, cfg: cfg, avail: cfg.Base}
	w, err := mem.Load32(cfg.Used)
	if err != nil {
		return nil, fmt.Errorf("%w: used ring: %w", ErrQueue, err)
	}
	q.used = uint16(w >> 16)
	return q, nil
}

// Resume runs a ring from its used index on: the place another process left it
// at, since chains are completed in order.
func Resume(mem Memory, cfg Config) (*Queue, error) {
	q, err := New(mem, cfg)
	if err == nil {
		q.avail = q.used
	}
	return q, err
}

// Base returns the index of the next available entry.
func (q *Queue) Base() uint16 { return q.avail }

// Rebind moves the ring to new memory and guest-physical addresses, keeping its
// indices.
func (q *Queue) Rebind(mem Memory, cfg Config) error {
	cfg.Base = q.avail
	n, err := New(mem, cfg)
	if err != nil {
		return err
	}
	n.used = q.used
	*q = *n
	return nil
}

// Peek returns the next available chain without taking it, nil if there is none.
// Push takes it.
func (q *Queue) Peek() (*Chain, error) {
	idx, _, err := q.availIndex()
	if err != nil {
		return nil, err
	}
	switch n := idx - q.avail; {
	case n == 0:
		return nil, nil
	case n > q.cfg.Size:
		return nil, fmt.Errorf("%w: available index %d is %d ahead of the device, the ring has %d entries", ErrQueue, idx, n, q.cfg.Size)
	}
	b := q.buf[:2]
	if err := q.mem.Read(q.cfg.Avail+4+2*uint64(q.avail&(q.cfg.Size-1)), b); err != nil {
		return nil, fmt.Errorf("%w: available ring: %w", ErrQueue, err)
	}
	if err := q.load(binary.LittleEndian.Uint16(b)); err != nil {
		return nil, err
	}
	return &q.chain, nil
}

// availIndex reads the driver's index and flags. The available ring is only
// 2-byte aligned: the index is in the aligned word that covers it.
func (q *Queue) availIndex() (idx, flags uint16, err error) {
	if q.cfg.Avail%4 == 0 {
		w, err := q.mem.Load32(q.cfg.Avail)
		if err != nil {
			return 0, 0, fmt.Errorf("%w: available ring: %w", ErrQueue, err)
		}
		return uint16(w >> 16), uint16(w), nil
	}
	w, err := q.mem.Load32(q.cfg.Avail + 2)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: available ring: %w", ErrQueue, err)
	}
	f, err := q.mem.Load32(q.cfg.Avail - 2)
	if err != nil { // the word before may be outside memory: then assume no suppression
		return uint16(w), 0, nil //nolint:nilerr // see above
	}
	return uint16(w), uint16(f >> 16), nil
}

// load copies and checks the chain that starts at head, Virtio §2.7.5.
func (q *Queue) load(head uint16) error {
	c := &q.chain
	c.head, c.readable, c.writable, c.readLen, c.writeLen = head, nil, nil, 0, 0
	limit := min(int(q.cfg.Size), maxChain)
	idx := head
	for n := 0; ; n++ {
		if n == limit {
			return fmt.Errorf("%w: chain at descriptor %d has more than %d descriptors or loops", ErrQueue, head, limit)
		}
		if idx >= q.cfg.Size {
			return fmt.Errorf("%w: chain at descriptor %d names descriptor %d, the ring has %d", ErrQueue, head, idx, q.cfg.Size)
		}
		d := q.buf[:16]
		if err := q.mem.Read(q.cfg.Desc+16*uint64(idx), d); err != nil {
			return fmt.Errorf("%w: descriptor %d: %w", ErrQueue, idx, err)
		}
		seg := segment{addr: binary.LittleEndian.Uint64(d), len: binary.LittleEndian.Uint32(d[8:])}
		flags := binary.LittleEndian.Uint16(d[12:])
		c.buf[n] = seg
		switch {
		case flags&descIndirect != 0:
			return fmt.Errorf("%w: descriptor %d is indirect, which was not offered", ErrQueue, idx)
		case flags&descWrite != 0:
			c.writeLen += int(seg.len)
		case len(c.writable) > 0:
			return fmt.Errorf("%w: chain at descriptor %d has a readable descriptor behind a writable one", ErrQueue, head)
		default:
			c.readLen += int(seg.len)
		}
		if flags&descWrite != 0 {
			c.writable = c.buf[n-len(c.writable) : n+1]
		} else {
			c.readable = c.buf[:n+1]
		}
		if flags&descNext == 0 {
			return nil
		}
		idx = binary.LittleEndian.Uint16(d[14:])
	}
}

// ReadLen returns the bytes the device may read from the chain.
func (c *Chain) ReadLen() int { return c.readLen }

// WriteLen returns the bytes the device may write to the chain.
func (c *Chain) WriteLen() int { return c.writeLen }

// Read copies the chain's readable bytes into dst and returns their number,
// which is the smaller of len(dst) and ReadLen.
func (q *Queue) Read(c *Chain, dst []byte) (int, error) {
	n := 0
	for _, s := range c.readable {
		k := min(int(s.len), len(dst)-n)
		if k == 0 {
			continue
		}
		if err := q.mem.Read(s.addr, dst[n:n+k]); err != nil {
			return n, fmt.Errorf("%w: buffer: %w", ErrQueue, err)
		}
		n += k
	}
	return n, nil
}

// Write copies src into the chain's writable bytes.
func (q *Queue) Write(c *Chain, src []byte) error {
	for _, s := range c.writable {
		k := min(int(s.len), len(src))
		if k == 0 {
			continue
		}
		if err := q.mem.Write(s.addr, src[:k]); err != nil {
			return fmt.Errorf("%w: buffer: %w", ErrQueue, err)
		}
		src = src[k:]
	}
	if len(src) > 0 {
		return fmt.Errorf("%w: buffer is %d bytes short", ErrQueue, len(src))
	}
	return nil
}

// Push completes the chain with the number of bytes written to it, and makes
// that visible to the driver.
func (q *Queue) Push(c *Chain, written int) error {
	e := q.buf[:8]
	binary.LittleEndian.PutUint32(e, uint32(c.head))
	binary.LittleEndian.PutUint32(e[4:], uint32(written))
	if err := q.mem.Write(q.cfg.Used+4+8*uint64(q.used&(q.cfg.Size-1)), e); err != nil {
		return fmt.Errorf("%w: used ring: %w", ErrQueue, err)
	}
	q.avail++
	q.used++
	// The flags half stays 0: the driver shall always kick. The atomic store
	// orders the entry before the index.
	if err := q.mem.Store32(q.cfg.Used, uint32(q.used)<<16); err != nil {
		return fmt.Errorf("%w: used ring: %w", ErrQueue, err)
	}
	return nil
}

// Interrupt reports whether the driver wants to be notified about used entries.
func (q *Queue) Interrupt() bool {
	_, flags, err := q.availIndex()
	return err == nil && flags&availNoInterrupt == 0
}

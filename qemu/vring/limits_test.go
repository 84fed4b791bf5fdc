package vring_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vring"
	"github.com/falcon-vnic/vnic/queues"
)

// everywhere is memory at all addresses, which keeps nothing.
type everywhere struct{}

func (everywhere) Read(uint64, []byte) error     { return nil }
func (everywhere) Write(uint64, []byte) error    { return nil }
func (everywhere) Load32(uint64) (uint32, error) { return 0, nil }
func (everywhere) Store32(uint64, uint32) error  { return nil }

// TestPartsThatWrap: a part of a ring may end before the last address, and may not reach it.
func TestPartsThatWrap(t *testing.T) {
	for _, tt := range []struct {
		desc, avail, used uint64 // before the end of all addresses; 0: elsewhere
		ok                bool
	}{
		{8*16 + 16, 0, 0, true},
		{8 * 16, 0, 0, false},
		{0, 6 + 2*8 + 2, 0, true},
		{0, 6 + 2*8, 0, false},
		{0, 0, 6 + 8*8 + 2, true},
		{0, 0, 6 + 8*8 - 2, false},
	} {
		_, err := vring.New(everywhere{}, vring.Config{Size: 8, Desc: -tt.desc, Avail: -tt.avail, Used: -tt.used})
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, vring.ErrQueue) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestSizes: a ring has a power of two of entries, up to 32768.
func TestSizes(t *testing.T) {
	for size, ok := range map[uint16]bool{
		0: false, 1: true, 2: true, 3: false, 128: true, 129: false, 16384: true, 32768: true,
		32769: false, 49152: false, 65535: false,
	} {
		if _, err := vring.New(everywhere{}, vring.Config{Size: size}); (err == nil) != ok || err != nil && !errors.Is(err, vring.ErrQueue) {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

// TestFullRing: a driver may make all entries available at once, and no more.
func TestFullRing(t *testing.T) {
	d, q, mem := setup(t)
	must(t, d.SetDesc(0, bufAt, 1, 0, 0))
	for ahead, ok := range map[uint16]bool{vhosttest.RingSize: true, vhosttest.RingSize + 1: false} {
		binary.LittleEndian.PutUint16(mem[d.Avail+2:], ahead)
		if ch, err := q.Peek(); (err == nil) != ok || ok && ch == nil {
			t.Errorf("%d available: %v, %v", ahead, ch, err)
		}
	}
}

// TestLongestChain: a chain has up to 128 descriptors, and no more than its ring.
func TestLongestChain(t *testing.T) {
	for _, tt := range []struct {
		size uint16
		n    int
		ok   bool
	}{{256, 128, true}, {256, 129, false}, {16, 16, true}, {128, 128, true}} {
		mem := make([]byte, memEnd)
		for i := range tt.n {
			at := mem[16*i:]
			binary.LittleEndian.PutUint64(at, bufAt)
			binary.LittleEndian.PutUint32(at[8:], 1)
			if i < tt.n-1 {
				binary.LittleEndian.PutUint16(at[12:], vhosttest.DescNext)
			}
			binary.LittleEndian.PutUint16(at[14:], uint16(i+1))
		}
		binary.LittleEndian.PutUint16(mem[0x8002:], 1) // entry 0 names descriptor 0
		q, err := vring.New(queues.NewMemory([]queues.Region{{Mem: mem}}), vring.Config{Size: tt.size, Avail: 0x8000, Used: 0x9000})
		must(t, err)
		ch, err := q.Peek()
		if (err == nil) != tt.ok || tt.ok && ch.ReadLen() != tt.n {
			t.Errorf("%d descriptors in a ring of %d: %v", tt.n, tt.size, err)
		}
	}
}

// TestEmptyBuffers: buffers of no bytes are skipped, and say nothing about those behind them.
func TestEmptyBuffers(t *testing.T) {
	d, q, mem := setup(t)
	copy(mem[bufAt:], "ab")
	must(t,
		d.SetDesc(0, memEnd, 0, vhosttest.DescNext, 1), // nowhere
		d.SetDesc(1, bufAt, 1, vhosttest.DescNext, 2),
		d.SetDesc(2, memEnd, 0, vhosttest.DescNext, 3),
		d.SetDesc(3, bufAt+1, 1, vhosttest.DescNext, 4),
		d.SetDesc(4, memEnd, 0, vhosttest.DescNext|vhosttest.DescWrite, 5),
		d.SetDesc(5, bufAt+2, 2, vhosttest.DescWrite, 0),
		d.Publish(0))
	ch, err := q.Peek()
	must(t, err)
	b := make([]byte, 4)
	if n, err := q.Read(ch, b); err != nil || string(b[:n]) != "ab" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	must(t, q.Write(ch, []byte("cd")))
	if string(mem[bufAt:bufAt+4]) != "abcd" {
		t.Errorf("memory is %q", mem[bufAt:bufAt+4])
	}
	if err := q.Write(ch, []byte("cde")); !errors.Is(err, vring.ErrQueue) || !strings.Contains(err.Error(), "1 bytes short") {
		t.Errorf("a byte too many: %v", err)
	}
}

// failing is memory that cannot be read below an address.
type failing struct {
	*queues.Memory
	below uint64
}

func (f *failing) Load32(addr uint64) (uint32, error) {
	if addr < f.below {
		return 0, errors.New("not memory")
	}
	return f.Memory.Load32(addr)
}

// TestInterruptUnknown: a driver whose wish cannot be read is told where the word in front of its
// ring is no memory, which need not be; and is not where the ring itself is gone.
func TestInterruptUnknown(t *testing.T) {
	mem := make([]byte, memEnd)
	ram := &failing{Memory: queues.NewMemory([]queues.Region{{Mem: mem}})}
	for _, tt := range []struct {
		avail, below uint64
		flags        uint16
		want         bool
	}{
		{0x1000, 0, 0, true},
		{0x1000, 0, 1, false},
		{0x1000, 0x1004, 0, false},
		{0x1002, 0, 0, true},
		{0x1002, 0, 1, false},
		{0x1002, 0x1004, 1, true}, // the flags cannot be read, the index can
		{0x1002, 0x1008, 0, false},
	} {
		ram.below = 0
		q, err := vring.New(ram, vring.Config{Size: 4, Avail: tt.avail, Used: 0x2000})
		must(t, err)
		binary.LittleEndian.PutUint16(mem[tt.avail:], tt.flags)
		ram.below = tt.below
		if got := q.Interrupt(); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
		binary.LittleEndian.PutUint16(mem[tt.avail:], 0)
	}
}

// TestUsedIndexStays: where the used ring stands is read once, and a ring that moves goes on there.
func TestUsedIndexStays(t *testing.T) {
	d, q, mem := setup(t)
	must(t, d.SetDesc(1, bufAt, 8, vhosttest.DescWrite, 0), d.Publish(1), d.Publish(1))
	for range 2 {
		ch, err := q.Peek()
		must(t, err)
		must(t, q.Push(ch, 3))
	}
	must(t, q.Rebind(queues.NewMemory([]queues.Region{{Mem: mem}}), config(d, 77))) // the base is not asked
	if q.Base() != 2 {
		t.Errorf("base %d", q.Base())
	}
	must(t, d.Publish(1))
	ch, err := q.Peek()
	must(t, err)
	must(t, q.Push(ch, 3))
	if w := binary.LittleEndian.Uint32(mem[d.Used:]); w != 3<<16 {
		t.Errorf("used index and flags %#x", w)
	}
}

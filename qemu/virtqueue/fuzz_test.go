package virtqueue_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// FuzzRing runs rings over arbitrary guest memory that changes while they run.
func FuzzRing(f *testing.F) {
	const size, driver, device, end = 8, 128, 160, 512
	desc := func(b []byte, addr uint64, n uint32, x, y uint16) []byte {
		b = binary.LittleEndian.AppendUint64(b, addr)
		b = binary.LittleEndian.AppendUint32(b, n)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, x), y)
	}
	chain := desc(desc(desc(nil, 300, 12, vhosttest.DescNext, 1), 320, 60, vhosttest.DescNext, 2), 400, 9, vhosttest.DescWrite, 0)
	table := desc(nil, 16, 32, vhosttest.DescIndirect, 0)
	for _, b := range [][]byte{chain, append(table, chain...)} {
		split := append(make([]byte, 0, end), b...)
		split = append(split[:driver], 0, 0, 3, 0)
		f.Add(split, uint8(2), uint64(1), uint16(0))
		f.Add(split, uint8(6), uint64(2), uint16(0))
		for i := range len(b) / 16 { // as a packed ring has them
			flags := binary.LittleEndian.Uint16(b[16*i+12:])
			b[16*i+12], b[16*i+14] = 5, byte(flags)|0x80
		}
		f.Add(bytes.Clone(b), uint8(3), uint64(3), uint16(0x8000))
		f.Add(bytes.Clone(b), uint8(7), uint64(4), uint16(0x8000))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint8, seed uint64, base uint16) {
		mem := make([]byte, end)
		copy(mem, b)
		c := kinds()[kind%8]
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := virtqueue.Config{
			Size: size, Desc: 0, Driver: driver, Device: device, Packed: c.Packed, Indirect: c.Indirect, EventIdx: c.EventIdx,
			Base: uint32(base & 0x8007), Ledger: make([]byte, virtqueue.LedgerSize),
		}
		r, err := virtqueue.New(ramOf(mem), cfg)
		if err != nil {
			t.Fatal(err)
		}
		open := 0
		for range 64 {
			m := r.Mark()
			ch, err := r.Take(plenty())
			switch {
			case err != nil && !errors.Is(err, virtqueue.ErrRing):
				t.Fatal(err)
			case err != nil:
				return
			case ch != nil:
				n := 0
				for _, b := range ch.Out() {
					n += len(b)
				}
				for _, b := range ch.In() {
					n += len(b)
					clear(b)
				}
				if n != ch.OutLen+ch.InLen {
					t.Fatalf("%d bytes, want %d and %d", n, ch.OutLen, ch.InLen)
				}
				if open++; rng.IntN(4) == 0 {
					open--
					r.Back(m)
				}
			}
			if open > 0 && rng.IntN(2) == 0 {
				r.Done(rng.IntN(100))
				open--
			}
			if rng.IntN(2) == 0 {
				r.Publish()
			}
			if rng.IntN(3) == 0 && !r.Arm() {
				r.Quiet()
			}
			mem[rng.IntN(end)] = byte(rng.Uint32())
		}
		if c.Packed {
			if base, ok := cfg.Ledger.Resume(ramOf(mem), 0, size); !ok || base&0x7fff >= size {
				t.Fatalf("resumed at %#x, %v", base, ok)
			}
		}
	})
}

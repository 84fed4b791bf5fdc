package virtqueue_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// noted returns a ledger that names the ring's position before and after a batch, and the batch's
// entries, all of the first lap.
func noted(t *testing.T, from, to uint16, indices ...uint16) virtqueue.Ledger {
	t.Helper()
	l := virtqueue.Ledger(pages(t, virtqueue.LedgerSize))
	binary.LittleEndian.PutUint64(l, uint64(from)|uint64(to)<<16|uint64(len(indices))<<32)
	for i, index := range indices {
		e := l[8+12*i:]
		binary.LittleEndian.PutUint16(e, index)
		binary.LittleEndian.PutUint16(e[2:], index)
		binary.LittleEndian.PutUint16(e[4:], 1<<7|1<<15)
		e[8] = 9
	}
	return l
}

// TestImpossibleLedgersAreNotResumed: a device refuses a ledger, or a ring, that cannot be right,
// and writes nothing to it. Values at the limit are taken.
func TestImpossibleLedgersAreNotResumed(t *testing.T) {
	const size, lap = 8, 1 << 15
	full := []uint16{0, 1, 2, 3, 4, 5, 6, 7}
	for _, tt := range []struct {
		name   string
		ledger virtqueue.Ledger
		desc   uint64
		size   uint16
		want   uint32 // base; 0: refused
	}{
		{"begins", noted(t, lap, 0), queueAt, size, 0x80008000},
		{"last place", noted(t, lap|7, 0), queueAt, size, 0x80078007},
		{"behind the last place", noted(t, lap|8, 0), queueAt, size, 0},
		{"too short", noted(t, lap, 0)[:virtqueue.LedgerSize-1], queueAt, size, 0},
		{"ring at the end of memory", noted(t, lap, 0), memSize - 16*size, size, 0x80008000},
		{"ring past the end of memory", noted(t, lap, 0), memSize - 16*size + 16, size, 0},
		{"misplaced ring", noted(t, lap, 0), queueAt + 8, size, 0},
		{"a whole ring", noted(t, lap, 1, full...), queueAt, size, 0x10001},
		{"more than a ring", noted(t, lap, 1, append(full, 0)...), queueAt, size, 0},
		{"behind the ring", noted(t, lap, 1, 0, 8, 2), queueAt, size, 0},
		{"first behind the ring", noted(t, lap, 1, 8, 1, 2), queueAt, size, 0},
		{"last behind the ring", noted(t, lap, 1, 0, 1, 8), queueAt, size, 0},
		{"to behind the ring", noted(t, lap, 8, 0), queueAt, size, 0},
	} {
		mem := pages(t, memSize)
		for i := range uint64(size) {
			if at := tt.desc + 16*i; at < memSize-16 {
				putDesc(mem[at:], bufAt, 8, uint16(i), 1<<7|2) // available
			}
		}
		before := bytes.Clone(mem)
		base, ok := tt.ledger.Resume(ramOf(mem), tt.desc, tt.size)
		if ok != (tt.want != 0) || ok && base != tt.want {
			t.Errorf("%s: resumed at %#x, %t", tt.name, base, ok)
		}
		if !ok && tt.name != "to behind the ring" && !bytes.Equal(mem, before) {
			t.Errorf("%s: memory was written", tt.name)
		}
		if tt.name != "a whole ring" {
			continue
		}
		for i := range uint64(size) {
			if d := mem[queueAt+16*i:][:16]; d[8] != 9 || d[12] != byte(i) || d[15] != 0x80 {
				t.Errorf("descriptor %d was not written: % x", i, d)
			}
		}
	}
	l := noted(t, lap|3, 5, 1, 2)
	l.Begin(0x80058005)
	if base, ok := l.Resume(ramOf(pages(t, memSize)), queueAt, size); !ok || base != 0x80058005 {
		t.Errorf("a ring that begins at %#x: %t", base, ok)
	}
}

// TestNextDeviceGoesOnWhereTheLastWas ends the device after a random number of steps, again and
// again: each next device continues where the last one stopped.
func TestNextDeviceGoesOnWhereTheLastWas(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		ledger := virtqueue.Ledger(pages(t, virtqueue.LedgerSize))
		d := vhosttest.NewQueue(mem, c)
		cfg := config(d)
		cfg.Ledger = ledger
		rng := rand.New(rand.NewPCG(2, 2))
		r := newRing(t, mem, cfg)
		var posted []posting
		back := 0
		for serial := uint32(0); serial < 3000; {
			for range rng.IntN(6) {
				p, ok := post(d, mem, rng, serial)
				if !ok {
					break
				}
				serial++
				posted = append(posted, p)
			}
			d.Show()
			n := 0
			for range rng.IntN(6) {
				ch, err := r.Take(plenty())
				if err != nil {
					t.Fatal(err)
				}
				if ch == nil {
					break
				}
				posted[n].check(t, ch)
				n++
			}
			done := rng.IntN(n + 1)
			for i := range done {
				r.Done(int(posted[i].in))
			}
			if rng.IntN(3) > 0 { // otherwise the device ends before it publishes
				r.Publish()
			} else {
				done = 0
			}
			posted = posted[done:]
			for {
				if _, _, ok := d.Used(); !ok {
					break
				}
				back++
			}
			if want := int(serial) - len(posted); back != want {
				t.Fatalf("%d chains came back, want %d", back, want)
			}
			cfg.Base = resume(t, mem, cfg)
			if want := r.Base(); c.Packed && done > 0 && cfg.Base != want {
				t.Fatalf("resumed at %#x, want %#x", cfg.Base, want)
			}
			r = newRing(t, mem, cfg)
		}
	})
}

func resume(t *testing.T, mem []byte, c virtqueue.Config) uint32 {
	t.Helper()
	if !c.Packed {
		return uint32(binary.LittleEndian.Uint16(mem[c.Device+2:]))
	}
	base, ok := c.Ledger.Resume(ramOf(mem), c.Desc, c.Size)
	if !ok {
		t.Fatal("not resumed")
	}
	return base
}

// TestNoChainIsLostByADeathWhileWriting ends the device of a packed ring after each store of a
// batch.
func TestNoChainIsLostByADeathWhileWriting(t *testing.T) {
	c := vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true}
	build := func() (mem []byte, ledger virtqueue.Ledger, d *vhosttest.Queue, r virtqueue.Ring, cfg virtqueue.Config) {
		mem, ledger = pages(t, memSize), virtqueue.Ledger(pages(t, virtqueue.LedgerSize))
		d = vhosttest.NewQueue(mem, c)
		cfg = config(d)
		cfg.Ledger = ledger
		r = newRing(t, mem, cfg)
		for range 5 {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 9}, vhosttest.Buffer{Addr: bufAt, Len: 7, Write: true})
			d.Show()
			if ch, err := r.Take(plenty()); err != nil || ch == nil {
				break
			}
		}
		return mem, ledger, d, r, cfg
	}
	// The order of stores is: the ledger's entries and its word, descriptors 2, 1, 0, the word.
	const done = 3
	for written := range done + 1 {
		mem, ledger, d, r, cfg := build()
		before := bytes.Clone(mem[queueAt : queueAt+8*16])
		noted := make([]byte, len(ledger))
		for range done {
			r.Done(7)
		}
		r.Publish()
		after := bytes.Clone(mem[queueAt : queueAt+8*16])
		copy(mem[queueAt:], before)
		for i := done - 1; i >= done-written; i-- { // each chain has two descriptors
			copy(mem[queueAt+i*32:queueAt+i*32+16], after[i*32:])
		}
		copy(noted, ledger)
		copy(ledger, binary.LittleEndian.AppendUint64(nil, uint64(binary.LittleEndian.Uint16(noted))<<16|done<<32))
		base := resume(t, mem, cfg)
		for i := range done {
			if _, n, ok := d.Used(); !ok || n != 7 {
				t.Fatalf("%d descriptors written: chain %d did not come back", written, i)
			}
		}
		if _, _, ok := d.Used(); ok {
			t.Fatalf("%d descriptors written: a chain too many", written)
		}
		if base != r.Base() {
			t.Errorf("%d descriptors written: resumed at %#x, want %#x", written, base, r.Base())
		}
	}
	// The whole batch was written, and the driver has reused its descriptors: they stay as they
	// are.
	mem, ledger, d, r, cfg := build()
	for range 4 {
		r.Done(7)
	}
	r.Publish()
	at := binary.LittleEndian.Uint16(ledger)
	for range 4 {
		if _, _, ok := d.Used(); !ok {
			t.Fatal("not used")
		}
	}
	for range 4 {
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 9}, vhosttest.Buffer{Addr: bufAt, Len: 7, Write: true})
	}
	copy(ledger, binary.LittleEndian.AppendUint64(nil, uint64(at)<<16|4<<32))
	again := bytes.Clone(mem[queueAt : queueAt+8*16])
	cfg.Base = resume(t, mem, cfg)
	if !bytes.Equal(again, mem[queueAt:queueAt+8*16]) {
		t.Fatal("descriptors that the driver posted anew were written")
	}
	next := newRing(t, mem, cfg)
	for range 4 {
		if ch, err := next.Take(plenty()); err != nil || ch == nil || ch.OutLen != 9 {
			t.Fatalf("%v %v", ch, err)
		}
	}
}

// TestARingThatGoesOnHasWhatWasPending: a device that starts where the last one stopped writes what
// that one was about to write. One that starts elsewhere, as for another driver, does not.
func TestARingThatGoesOnHasWhatWasPending(t *testing.T) {
	const size, lap = 8, 1 << 15
	for base, want := range map[uint32]bool{(lap | 3) * 0x10001: true, lap * 0x10001: false} {
		mem := pages(t, memSize)
		cfg := config(vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: size, Packed: true}))
		for i := range uint64(size) {
			putDesc(mem[queueAt+16*i:], bufAt, 8, uint16(i), 1<<7|2) // available
		}
		cfg.Base, cfg.Ledger = base, noted(t, lap|1, lap|3, 1, 2)
		r := newRing(t, mem, cfg)
		for i := range uint64(size) {
			if d := mem[queueAt+16*i:][:16]; (d[15] == 0x80) != (want && (i == 1 || i == 2)) {
				t.Errorf("from %#x: descriptor %d is % x", base, i, d)
			}
		}
		if r.Base() != base {
			t.Errorf("from %#x: it is at %#x", base, r.Base())
		}
	}
}

package virtqueue_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// TestSizes: a ring has up to 32768 entries; of a split one they are a power of two (Virtio §2.7,
// §2.8.10.1).
func TestSizes(t *testing.T) {
	mem := ramOf(pages(t, 1<<20))
	for _, tt := range []struct {
		size          uint16
		split, packed bool // may be
	}{
		{0, false, false},
		{1, true, true},
		{2, true, true},
		{3, false, true},
		{100, false, true},
		{16384, true, true},
		{32767, false, true},
		{32768, true, true},
		{32769, false, false},
		{65535, false, false},
	} {
		for _, packed := range []bool{false, true} {
			_, err := virtqueue.New(mem, virtqueue.Config{Size: tt.size, Desc: 0, Driver: 0x80000, Device: 0xa0000, Packed: packed})
			if want := !packed && tt.split || packed && tt.packed; (err == nil) != want || err != nil && !errors.Is(err, virtqueue.ErrRing) {
				t.Errorf("size %d, packed %t: %v", tt.size, packed, err)
			}
		}
	}
}

// TestPartsAtTheEnd: each part of a ring may end where memory ends, and not a byte behind.
func TestPartsAtTheEnd(t *testing.T) {
	mem := pages(t, memSize)
	for _, packed := range []bool{false, true} {
		lengths := [3]uint64{8 * 16, 6 + 2*8, 6 + 8*8}
		if packed {
			lengths = [3]uint64{8 * 16, 4, 4}
		}
		for i, n := range lengths {
			const at = 2048
			parts := [3]uint64{0, 256, 512}
			parts[i] = at
			for _, missing := range []uint64{0, 1} {
				_, err := virtqueue.New(ramOf(mem[:at+n-missing]), virtqueue.Config{
					Size: 8, Packed: packed, Desc: parts[0], Driver: parts[1], Device: parts[2],
				})
				if (err == nil) != (missing == 0) || err != nil && !errors.Is(err, virtqueue.ErrRing) {
					t.Errorf("packed %t, %d bytes of part %d are missing: %v", packed, missing, i, err)
				}
			}
		}
	}
}

// putDesc writes a descriptor of a split ring, or of a table.
func putDesc(b []byte, addr uint64, size uint32, x, y uint16) {
	binary.LittleEndian.PutUint64(b, addr)
	binary.LittleEndian.PutUint32(b[8:], size)
	binary.LittleEndian.PutUint16(b[12:], x)
	binary.LittleEndian.PutUint16(b[14:], y)
}

// TestWhereIndirectMayBe: a table stands alone in its chain, or ends that of a split ring, and only
// where it was negotiated (Virtio §2.7.5.3, §2.8.7).
func TestWhereIndirectMayBe(t *testing.T) {
	const available = 1 << 7 // of a packed ring, in its first lap
	for _, tt := range []struct {
		name             string
		packed, indirect bool
		ring, table      [2][2]uint16 // the descriptors' last two fields: flags and next, or id and flags
		want             int          // bytes to read; 0: refused
	}{
		{"split", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 1}, {0, 0}}, 16},
		{"split, of one", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{}, 8},
		{"split, behind another", false, true, [2][2]uint16{{1, 1}, {4, 0}}, [2][2]uint16{}, 8 + 32},
		{"split, not negotiated", false, false, [2][2]uint16{{4, 0}}, [2][2]uint16{}, 0},
		{"split, not negotiated, behind another", false, false, [2][2]uint16{{1, 1}, {4, 0}}, [2][2]uint16{}, 0},
		{"split, before another", false, true, [2][2]uint16{{4 | 1, 1}}, [2][2]uint16{}, 0},
		{"split, in a table", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{4, 0}}, 0},
		{"split, in a table at its end", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 1}, {4, 0}}, 0},
		{"split, out of its table", false, true, [2][2]uint16{{4, 0}}, [2][2]uint16{{1, 2}}, 0},
		{"packed", true, true, [2][2]uint16{{0, available | 4}}, [2][2]uint16{}, 16},
		{"packed, not negotiated", true, false, [2][2]uint16{{0, available | 4}}, [2][2]uint16{}, 0},
		{"packed, before another", true, true, [2][2]uint16{{0, available | 4 | 1}, {0, available}}, [2][2]uint16{}, 0},
		{"packed, behind another", true, true, [2][2]uint16{{0, available | 1}, {0, available | 4}}, [2][2]uint16{}, 0},
	} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16, Packed: tt.packed, Indirect: tt.indirect})
		desc, driver, _ := d.Parts()
		const table = bufAt + 0x1000
		for i := range tt.ring {
			f := tt.ring[i]
			addr := uint64(bufAt)
			if (f[0]|f[1])&4 != 0 {
				addr = table
			}
			putDesc(mem[desc+16*uint64(i):], addr, 32, f[0], f[1])
			putDesc(mem[table+16*i:], bufAt, 8, tt.table[i][0], tt.table[i][1])
		}
		if !tt.packed {
			mem[driver+2] = 1 // entry 0 names descriptor 0
		}
		ch, err := newRing(t, mem, config(d)).Take(plenty())
		switch {
		case tt.want == 0:
			if !errors.Is(err, virtqueue.ErrRing) {
				t.Errorf("%s: %+v, %v", tt.name, ch, err)
			}
		case err != nil || ch == nil || ch.OutLen != tt.want:
			t.Errorf("%s: %+v, %v, want %d bytes", tt.name, ch, err, tt.want)
		}
	}
}

// TestErrorsNameTheRing: who reads the log hears how large the ring is that its driver broke.
func TestErrorsNameTheRing(t *testing.T) {
	for _, packed := range []bool{false, true} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16, Packed: packed})
		r := newRing(t, mem, config(d))
		other := config(d)
		other.Size = 8
		if err := r.Rebind(ramOf(mem), other); !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), "the ring had 16 entries") {
			t.Errorf("packed %t, rebound with another size: %v", packed, err)
		}
		if packed {
			continue
		}
		_, driver, _ := d.Parts()
		mem[driver+2] = 17
		if _, err := r.Take(plenty()); err == nil || !strings.Contains(err.Error(), "available index 17 is 17 ahead of the device, the ring has 16 entries") {
			t.Errorf("too many: %v", err)
		}
		mem[driver+2], mem[driver+4] = 1, 16
		if _, err := r.Take(plenty()); err == nil || !strings.Contains(err.Error(), "names descriptor 16 of 16") {
			t.Errorf("outside: %v", err)
		}
	}
}

// TestLongestChain: a chain has up to MaxSegments buffers, and as many descriptors as its ring.
func TestLongestChain(t *testing.T) {
	for _, packed := range []bool{false, true} {
		for _, tt := range []struct {
			size uint16
			n    int
			says string // "": it is taken
		}{
			{512, virtqueue.MaxSegments, ""},
			{512, virtqueue.MaxSegments + 1, "more than 256 descriptors"},
			{16, 16, ""},
		} {
			mem := pages(t, memSize)
			d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: tt.size, Packed: packed})
			bufs := make([]vhosttest.Buffer, tt.n)
			for i := range bufs {
				bufs[i] = vhosttest.Buffer{Addr: bufAt, Len: 8}
			}
			if _, ok := d.Add(bufs...); !ok {
				t.Fatal("no room")
			}
			d.Show()
			ch, err := newRing(t, mem, config(d)).Take(plenty())
			if tt.says != "" {
				if !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("packed %t, %d buffers: %v", packed, tt.n, err)
				}
				continue
			}
			if err != nil || len(ch.Out()) != tt.n {
				t.Errorf("packed %t, %d buffers in a ring of %d: %v", packed, tt.n, tt.size, err)
			}
		}
	}
}

// TestLoop: a chain of a split ring that comes back to itself is known by its length, also where
// its buffers are empty.
func TestLoop(t *testing.T) {
	for _, size := range []uint32{0, 8} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 16})
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
		d.Show()
		desc, _, _ := d.Parts()
		for i := range uint64(16) {
			putDesc(mem[desc+16*i:], bufAt, size, vhosttest.DescNext, uint16(i+1)%16)
		}
		if _, err := newRing(t, mem, config(d)).Take(plenty()); !errors.Is(err, virtqueue.ErrRing) || !strings.Contains(err.Error(), "loops") {
			t.Errorf("%v", err)
		}
	}
}

// TestRoomOfAPackedRing: the descriptors of a chain count, together with those that the device has:
// a chain that passes the end of the ring would read what belongs to another.
func TestRoomOfAPackedRing(t *testing.T) {
	for taken := range 8 {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true})
		r := newRing(t, mem, config(d))
		take := func() (*virtqueue.Chain, error) {
			d.Show()
			return r.Take(plenty())
		}
		for range taken {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
			if ch, err := take(); ch == nil || err != nil {
				t.Fatal(ch, err)
			}
		}
		d.Add(make([]vhosttest.Buffer, 8-taken)...) // all that is left
		m := r.Mark()
		for range 3 { // whoever gives it back has room for it again
			if ch, err := take(); ch == nil || err != nil {
				t.Fatalf("%d taken: %v", taken, err)
			}
			r.Back(m)
		}
		desc, _, _ := d.Parts()
		mem[desc+16*7+14] |= vhosttest.DescNext
		if ch, err := take(); !errors.Is(err, virtqueue.ErrRing) {
			t.Errorf("%d taken, and a chain of %d: %+v, %v", taken, 9-taken, ch, err)
		}
	}
}

// TestUsedFlags: a used descriptor of a packed ring says by its flags the lap that it is of, and
// whether anything was written (Virtio §2.8.1, §2.8.4).
func TestUsedFlags(t *testing.T) {
	mem := pages(t, memSize)
	d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 2, Packed: true})
	r := newRing(t, mem, config(d))
	desc, _, _ := d.Parts()
	const lap, written = 1<<7 | 1<<15, vhosttest.DescWrite
	for i, want := range []uint16{lap, lap | written, 0, written, lap | written} {
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8, Write: true})
		d.Show()
		if ch, err := r.Take(plenty()); ch == nil || err != nil {
			t.Fatal(ch, err)
		}
		n := 0
		if want&written != 0 {
			n = 1
		}
		r.Done(n)
		r.Publish()
		if flags := binary.LittleEndian.Uint16(mem[desc+16*uint64(i%2)+14:]); flags != want {
			t.Errorf("chain %d, %d bytes: flags %#x, want %#x", i, n, flags, want)
		}
		if _, got, ok := d.Used(); !ok || got != uint32(n) {
			t.Errorf("chain %d: used %t with %d bytes", i, ok, got)
		}
	}
}

// TestToldAsWanted: a driver that wants no interrupts gets none; one that waits for the next chain
// gets one for it, and with event indices none for those behind.
func TestToldAsWanted(t *testing.T) {
	eachKind(t, func(t *testing.T, c vhosttest.QueueConfig) {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, c)
		r := newRing(t, mem, config(d))
		told := func() bool {
			d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
			d.Show()
			if ch, err := r.Take(plenty()); ch == nil || err != nil {
				t.Fatal(ch, err)
			}
			r.Done(0)
			d.Used()
			return r.Publish()
		}
		for range 3 * c.Size {
			for d.Interrupts(true) {
				d.Used()
			}
			if !told() {
				t.Fatal("a driver that waits is not told")
			}
			if told() == c.EventIdx {
				t.Fatalf("a driver that has not asked again: told %t", !c.EventIdx)
			}
			if d.Interrupts(false); c.Packed || !c.EventIdx { // else the index alone counts
				if told() {
					t.Fatal("a driver that wants no interrupts is told")
				}
			}
			if r.Publish() {
				t.Fatal("told of nothing")
			}
		}
	})
}

// TestEventNotNegotiated: without event indices no driver of a packed ring asks for one.
func TestEventNotNegotiated(t *testing.T) {
	for _, eventIdx := range []bool{false, true} {
		mem := pages(t, memSize)
		d := vhosttest.NewQueue(mem, vhosttest.QueueConfig{At: queueAt, Size: 8, Packed: true, EventIdx: eventIdx})
		r := newRing(t, mem, config(d))
		_, driver, _ := d.Parts()
		binary.LittleEndian.PutUint32(mem[driver:], 2<<16|1<<15) // the first descriptor of the first lap
		d.Add(vhosttest.Buffer{Addr: bufAt, Len: 8})
		d.Show()
		if ch, err := r.Take(plenty()); ch == nil || err != nil {
			t.Fatal(ch, err)
		}
		r.Done(0)
		if told := r.Publish(); told != eventIdx {
			t.Errorf("event indices %t: told %t", eventIdx, told)
		}
	}
}

// noted is a ledger: where the ring stands, where it would after the entries, and those, all of the
// first lap.
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

// TestLedgersThatAreNone: nothing is written, and nobody goes on, where a ledger or its ring cannot
// be right. What just can be is.
func TestLedgersThatAreNone(t *testing.T) {
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

package qemu

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
)

// TestVfioManyMaps: with an IOMMU a guest has thousands of ranges, and takes all back at once when
// it reboots. The sessions hear of that once, not for each range: QEMU and its guest wait
// meanwhile.
func TestVfioManyMaps(t *testing.T) {
	v, q := oneVfioFunction(t)
	s := accepted(t, v)
	var told, regions atomic.Int64
	stop := s.Watch(func(rs queues.Regions) {
		told.Add(1)
		regions.Store(int64(rs.Len()))
	})
	defer stop()
	unmap := func(u vfiouser.Unmap) {
		t.Helper()
		before := told.Load()
		if _, err := q.Call(vfiouser.DMAUnmap, u.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if told.Load() != before+1 || regions.Load() != 0 {
			t.Errorf("%d regions are left, the session was told %d times", regions.Load(), told.Load()-before)
		}
	}
	for _, all := range []vfiouser.Unmap{{Range: vfiouser.Range{Addr: 0, Size: 1 << 60}}, {Flags: vfiouser.UnmapAll}} {
		unmap(all)
		const n = 1000
		for i := range uint64(n) {
			m := vfiouser.Map{Flags: vfiouser.MapRead, Offset: i * 7 % 2048 * 4096, Range: vfiouser.Range{Addr: 1<<40 - i*8192, Size: 4096}}
			if err := q.Map(m, q.file); err != nil {
				t.Fatal(err)
			}
		}
		if regions.Load() != n {
			t.Errorf("%d regions", regions.Load())
		}
		unmap(all)
		m := vfiouser.Map{Flags: vfiouser.MapRead, Range: vfiouser.Range{Addr: 0, Size: 4096}} // for the next
		if err := q.Map(m, q.file); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVfioUnmapPart: when QEMU takes back a part of what it mapped, the function keeps the rest,
// and each byte of it is where it was; the memory goes when the last part does.
func TestVfioUnmapPart(t *testing.T) {
	v, q := oneVfioFunction(t)
	var mem queues.Memory
	var mu sync.Mutex // guards mem
	defer accepted(t, v).Watch(func(rs queues.Regions) {
		mu.Lock()
		defer mu.Unlock()
		mem.Use(rs)
	})()
	if err := q.Unmap(vfiouser.Range{Addr: 0, Size: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	const base = 1 << 40
	if err := q.Map(vfiouser.Map{Flags: vfiouser.MapRead | vfiouser.MapWrite, Offset: 0x1000, Range: vfiouser.Range{Addr: base, Size: 0x8000}}, q.file); err != nil {
		t.Fatal(err)
	}
	for at := uint64(0); at < 0x8000; at += 0x1000 {
		mu.Lock()
		err := mem.Write(base+at, []byte{byte(at >> 12)})
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := map[uint64]bool{}
	for _, r := range []vfiouser.Range{{Addr: base + 0x3000, Size: 0x1000}, {Addr: base + 0x7000, Size: 1 << 20}, {Addr: base + 0x4000, Size: 0x1000}, {Addr: 0, Size: base + 0x1000}, {Addr: base, Size: 0x8000}} {
		if err := q.Unmap(r); err != nil {
			t.Fatal(err)
		}
		for at := uint64(0); at < 0x8000; at += 0x1000 {
			gone[at] = gone[at] || r.Contains(vfiouser.Range{Addr: base + at, Size: 0x1000})
			var b [1]byte
			mu.Lock()
			err := mem.Read(base+at, b[:])
			mu.Unlock()
			if (err != nil) != gone[at] || !gone[at] && b[0] != byte(at>>12) {
				t.Errorf("without %s: %#x has %d, %v", r, at, b[0], err)
			}
		}
	}
}

package qemu

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestThousandsOfRangesAreUnmappedAtOnce: a guest with an IOMMU maps thousands of ranges, and
// unmaps all at once when it reboots. The sessions are told once, not for each range, because QEMU
// and its guest wait meanwhile.
func TestThousandsOfRangesAreUnmappedAtOnce(t *testing.T) {
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

// TestUnmappingAPartKeepsTheRest: if QEMU unmaps a part of a range, the function keeps the rest,
// with each byte at the same address. The memory is released with the last part.
func TestUnmappingAPartKeepsTheRest(t *testing.T) {
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

// TestRangeLiesWithinItsFile: a range of DMA addresses may cover all of its file, but nothing past
// its end. A file is kept as long as a range uses it, and is mapped once for writing and once for
// reading.
func TestRangeLiesWithinItsFile(t *testing.T) {
	const size = 0x4000
	fd := memfd(t, size, unix.F_SEAL_SHRINK)
	budget := guestmem.NewBudget("test", guestmem.Attachment)
	d := dmaMap{budget: budget}
	add := func(addr, offset, n uint64, flags uint32) (*dmaRange, error) {
		t.Helper()
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return d.add(vfiouser.Map{Flags: flags, Offset: offset, Range: vfiouser.Range{Addr: addr, Size: n}}, own)
	}
	for _, past := range [][2]uint64{{0, size + 1}, {size, 1}, {0x1000, size}} {
		if _, err := add(0, past[0], past[1], vfiouser.MapRead); err == nil || len(d.files) != 0 || len(d.ranges) != 0 {
			t.Errorf("%d bytes at %d of a file of %d: %v, %d files", past[1], past[0], size, err, len(d.files))
		}
	}
	var regions []queues.Region
	for i, flags := range []uint32{
		vfiouser.MapRead | vfiouser.MapWrite, vfiouser.MapRead,
		vfiouser.MapRead | vfiouser.MapWrite, vfiouser.MapRead,
	} {
		r, err := add(uint64(3-i)<<20, uint64(i)*0x1000, size-uint64(i)*0x1000, flags)
		if err != nil {
			t.Fatal(err)
		}
		region, err := d.region(r)
		if err != nil || region.Addr != r.Addr || len(region.Mem) != int(r.Size) {
			t.Fatalf("%+v, %v", region.Addr, err)
		}
		regions = append(regions, region)
	}
	regions[0].Mem[0x3000] = 42
	if regions[1].Mem[0x2000] != 42 || regions[2].Mem[0x1000] != 42 || regions[3].Mem[0] != 42 || &regions[0].Mem[0x2000] != &regions[2].Mem[0] || &regions[1].Mem[0x2000] != &regions[3].Mem[0] {
		t.Error("the file is not mapped as a whole")
	}
	if u := budget.Usage(); u.Maps != 2 || u.Bytes != 2*size {
		t.Errorf("%+v is mapped, want the file once for writing and once for reading", u)
	}
	if len(d.files) != 1 || d.files[0].refs != 4 {
		t.Errorf("%d files", len(d.files))
	}
	for i := 1; i < len(d.ranges); i++ {
		if d.ranges[i-1].Addr >= d.ranges[i].Addr {
			t.Error("ranges are not in order")
		}
	}
	if r, err := d.add(vfiouser.Map{Range: vfiouser.Range{Addr: 1 << 30, Size: 1 << 40}}, vfiouser.NoFile); err != nil || r.file != nil {
		t.Errorf("a range without a file: %v", err)
	}
	own := d.files[0].fd
	for left := 4; left > 0; left-- {
		if gone := d.remove(vfiouser.Range{Addr: uint64(left-1) << 20, Size: 1 << 20}); len(gone) != 1 {
			t.Fatalf("%d ranges went for one", len(gone))
		} else {
			d.release(gone...)
		}
		if open := len(d.files) == 1; open != (left > 1) {
			t.Errorf("%d ranges are left, and %d files", left-1, len(d.files))
		}
	}
	if _, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the file is open: %v", err)
	}
	if u := budget.Usage(); u.Maps != 0 || u.Bytes != 0 {
		t.Errorf("%+v is still mapped", u)
	}
}

// shardMemory is a function's memory as a shard has it, and a lock in place of the shard's thread.
type shardMemory struct {
	mu sync.Mutex
	queues.Memory
}

func watchMemory(t *testing.T, s queues.Session) *shardMemory {
	m := &shardMemory{}
	t.Cleanup(s.Watch(func(rs queues.Regions) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.Use(rs)
	}))
	return m
}

func (m *shardMemory) read(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Read(addr, b)
}

func (m *shardMemory) write(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Write(addr, b)
}

const scatteredPage = 4096

func page(addr uint64) vfiouser.Range { return vfiouser.Range{Addr: addr, Size: scatteredPage} }

// TestScatteredPagesAreWhereTheyWereMapped: behind an IOMMU the guest's pages come and go in any
// order, and pages with neighbouring addresses are anywhere in memory. After each step every byte
// is where the test's own list of pages has it, also in accesses that cross from one page into the
// next. A range that overlaps another is refused and changes nothing (DEV-1103).
func TestScatteredPagesAreWhereTheyWereMapped(t *testing.T) {
	v, q := oneVfioFunction(t)
	mem := watchMemory(t, accepted(t, v))
	for i := range vfioTestMemory / scatteredPage { // each page tells its place
		copy(q.ram[i*scatteredPage:], bytes.Repeat([]byte{byte(i), byte(i >> 8)}, scatteredPage/2))
	}
	const pages, base = 48, 1 << 40
	rapid.Check(t, func(t *rapid.T) {
		if err := q.Unmap(vfiouser.Range{Addr: 0, Size: 1 << 60}); err != nil {
			t.Fatal(err)
		}
		var at [pages]int // in the file, from 1 on; 0: not mapped
		drawn := func(t *rapid.T) (first, n int) {
			first = rapid.IntRange(0, pages-1).Draw(t, "page")
			return first, rapid.IntRange(1, min(4, pages-first)).Draw(t, "pages")
		}
		t.Repeat(map[string]func(*rapid.T){
			"map": func(t *rapid.T) {
				first, n := drawn(t)
				from := rapid.IntRange(1, vfioTestMemory/scatteredPage-n).Draw(t, "from")
				var want error
				for i := range n {
					if at[first+i] != 0 {
						want = unix.EEXIST
					}
				}
				m := vfiouser.Map{Flags: vfiouser.MapRead | vfiouser.MapWrite, Offset: uint64(from) * scatteredPage, Range: vfiouser.Range{Addr: base + uint64(first)*scatteredPage, Size: uint64(n) * scatteredPage}}
				if err := q.Map(m, q.file); !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
				for i := range n {
					if want == nil {
						at[first+i] = from + i
					}
				}
			},
			"unmap": func(t *rapid.T) {
				first, n := drawn(t)
				if err := q.Unmap(vfiouser.Range{Addr: base + uint64(first)*scatteredPage, Size: uint64(n) * scatteredPage}); err != nil {
					t.Fatal(err)
				}
				clear(at[first : first+n])
			},
			"": func(t *rapid.T) {
				for i := range pages - 1 { // from the middle of each page into the next
					var b [scatteredPage]byte
					err := mem.read(base+uint64(i)*scatteredPage+scatteredPage/2, b[:])
					if (err == nil) != (at[i] != 0 && at[i+1] != 0) {
						t.Fatalf("pages %d and %d, %d and %d in the file: %v", i, i+1, at[i], at[i+1], err)
					}
					if end := b[scatteredPage-2:]; err == nil && (b[0] != byte(at[i]) || b[1] != byte(at[i]>>8) || end[0] != byte(at[i+1]) || end[1] != byte(at[i+1]>>8)) {
						t.Fatalf("pages %d and %d, %d and %d in the file, have % x and % x", i, i+1, at[i], at[i+1], b[:2], end)
					}
				}
			},
		})
	})
}

// TestUnmappedMemoryIsNotTouched: memory that is unmapped while the device writes to it is not
// touched after the reply, even though its file is closed.
func TestUnmappedMemoryIsNotTouched(t *testing.T) {
	v, q := oneVfioFunction(t)
	mem := watchMemory(t, accepted(t, v))
	for range 20 {
		const base = vfioTestBase
		writing, end := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				if err := mem.write(base+scatteredPage-4, []byte{1, 1, 1, 1, 1, 1, 1, 1}); err != nil {
					end <- err
					return
				}
				if i == 0 {
					close(writing)
				}
			}
		}()
		<-writing
		if err := q.Unmap(vfiouser.Range{Addr: 0, Size: 1 << 60}); err != nil {
			t.Fatal(err)
		}
		copy(q.ram[scatteredPage-4:], make([]byte, 8))
		var f *queues.FaultError
		if err := <-end; !errors.As(err, &f) || f.Why != queues.WhyUnmapped {
			t.Errorf("the device found %v", err)
		}
		if !bytes.Equal(q.ram[scatteredPage-4:][:8], make([]byte, 8)) {
			t.Error("memory was written to after it was taken back")
		}
		q.mapAll(t)
	}
}

// TestTooManyRangesAreRefused: too many ranges or files are refused, the log says what to do, and
// the existing ones stay.
func TestTooManyRangesAreRefused(t *testing.T) {
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "f")
	v := NewVfioUser("test", testCID, VhostOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer v.Close()
	if err := v.AddFunction(vfioTestFunction, abi.FunctionVF, path, vfioTestLook); err != nil {
		t.Fatal(err)
	}
	q := startVfioQEMU(t, path)
	q.dial(t)
	mem := watchMemory(t, accepted(t, v))
	var files []int
	for i := 1; i < maxDMAFiles; i++ {
		fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, scatteredPage)
		}
		if err == nil {
			err = q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Range: page(1<<40 + uint64(i)<<20)}, fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		if files = append(files, fd); len(files) > 1 { // one is enough of our own
			_ = unix.Close(files[len(files)-2])
		}
	}
	more, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(more, scatteredPage)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(more)
	defer unix.Close(files[len(files)-1])
	if err := q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Range: page(1 << 41)}, more); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one file more: %v", err)
	}
	g := v.functions[vfioTestFunction]
	g.mu.Lock()
	had := g.dma.ranges
	for i := len(had); i < vfiouser.MaxMaps; i++ {
		g.dma.ranges = append(g.dma.ranges, dmaRange{Map: vfiouser.Map{Range: page(1<<50 + uint64(i)<<20)}})
	}
	g.mu.Unlock()
	if err := q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Range: page(1 << 41)}, q.file); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one range more: %v", err)
	}
	var b [8]byte
	if err := errors.Join(mem.read(vfioTestBase, b[:]), mem.read(1<<40+1<<20, b[:])); err != nil {
		t.Errorf("what was mapped before: %v", err)
	}
	g.mu.Lock()
	g.dma.ranges = had
	g.mu.Unlock()
	if err := q.Unmap(page(1<<40 + 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Range: page(1 << 41)}, more); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
	if g.mu.Lock(); !strings.Contains(log.String(), "use fewer memory backends") {
		t.Errorf("logged: %s", log.String())
	}
	g.mu.Unlock()
}

// TestWindowIsNoTargetOfDMA: memory that turns out to be the window of another function is no
// longer a target of DMA. That happens when a worker begins: it learns of functions one by one, but
// of all memory of a guest with the first.
func TestWindowIsNoTargetOfDMA(t *testing.T) {
	v, q := oneVfioFunction(t)
	mem := watchMemory(t, accepted(t, v))
	win, err := ivshmem.NewWindow(vfioTestFunction+1, abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Map(vfiouser.Map{Flags: vfiouser.MapRead | vfiouser.MapWrite, Range: page(1 << 41)}, win.File()); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if err := mem.read(1<<41, b[:]); err != nil {
		t.Fatal(err)
	}
	sock, err := listenUnixSocket(filepath.Join(t.TempDir(), "g"))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.UseFunction(vfioTestFunction+1, win, sock, nil); err != nil {
		t.Fatal(err)
	}
	if err := mem.read(1<<41, b[:]); err == nil {
		t.Error("the window of another function is memory")
	}
	if err := mem.read(vfioTestBase, b[:]); err != nil {
		t.Error(err)
	}
}

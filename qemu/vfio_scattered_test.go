package qemu

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// TestVfioScattered: behind an IOMMU the guest's pages come and go in any order, and neighbours in
// addresses are anywhere in memory. After each step every byte is where a list of pages says, also
// for accesses that cross from one page into the next; a range that overlaps another changes
// nothing (DEV-1103).
func TestVfioScattered(t *testing.T) {
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

// TestVfioUnmapInUse: memory that is taken back while the device writes to it is not touched after
// the answer, although its file goes with it.
func TestVfioUnmapInUse(t *testing.T) {
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

// TestVfioTooMany: ranges and files that are too many are refused, with what to do about it in the
// log, and those that are there stay.
func TestVfioTooMany(t *testing.T) {
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

// TestVfioWindowLater: memory that turns out to be another function's window is no target of DMA
// any more. A worker that begins learns of functions one by one, and of all a guest's memory with
// the first.
func TestVfioWindowLater(t *testing.T) {
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

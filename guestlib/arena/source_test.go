package arena

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// require skips a test whose conditions this machine does not meet, or fails it where everything
// must run.
func require(t *testing.T, ok bool, reason string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

func TestPinnedPagesStayWhereTheyAre(t *testing.T) {
	require(t, os.Geteuid() == 0, "pinning guest memory needs root")
	disabled, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	require(t, strings.TrimSpace(string(disabled)) != "2", "sysctl kernel.io_uring_disabled is 2")

	g := NewGuestRAM(8 << 20)
	p := NewPool(g)
	var blocks []*Block
	seen := map[uint64]bool{}
	for _, n := range []int{1, PageSize, 3<<20 + 1, 100} {
		b, err := p.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range b.Pages() {
			if a == 0 || a%PageSize != 0 || seen[a] {
				t.Fatalf("page address %#x is zero, misaligned or given twice", a)
			}
			seen[a] = true
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks { // the pages are where they were: that is what the pin is for
		again, err := g.resolve(b.in.Mem)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range b.Pages() {
			if again[b.at.first+i] != a {
				t.Fatalf("page %d moved from %#x to %#x", i, a, again[b.at.first+i])
			}
		}
	}
	if _, err := p.Alloc(6 << 20); !errors.Is(err, ErrExhausted) {
		t.Errorf("past the limit: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// A limit below the usual chunk size is used up to the last page.
func TestGuestRAMSmallLimit(t *testing.T) {
	g := NewGuestRAM(3 * PageSize)
	g.pin = func([]byte) (io.Closer, error) { return nopCloser{}, nil }
	g.resolve = func(mem []byte) ([]uint64, error) { return make([]uint64, pages(len(mem))), nil }
	defer g.Close()
	c, err := g.Grow(2 * PageSize)
	if err != nil || len(c.Addrs) != 2 {
		t.Fatalf("%d pages, %v", len(c.Addrs), err)
	}
	if _, err := g.Grow(2 * PageSize); !errors.Is(err, ErrExhausted) {
		t.Errorf("past the limit: %v", err)
	}
	if _, err := g.Grow(PageSize); err != nil {
		t.Errorf("the last page: %v", err)
	}
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

func TestAPagemapGivesFramesOrSaysWhyNot(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 2*PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	for _, c := range []struct {
		name    string
		entries []uint64
		want    []uint64
		err     string
	}{
		{"present", []uint64{1<<63 | 0x1234, 1<<63 | 1<<61 | 0x42}, []uint64{0x1234000, 0x42000}, ""},
		{"swapped out", []uint64{1<<63 | 1, 1 << 62}, nil, "not present"},
		{"frame numbers hidden", []uint64{1<<63 | 1, 1 << 63}, nil, "CAP_SYS_ADMIN"},
		{"short", []uint64{1<<63 | 1}, nil, "CAP_SYS_ADMIN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir() + "/pagemap"
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			b := binary.NativeEndian.AppendUint64(nil, c.entries[0])
			for _, e := range c.entries[1:] {
				b = binary.NativeEndian.AppendUint64(b, e)
			}
			if _, err := f.WriteAt(b, int64(baseAddress(mem)/PageSize*8)); err != nil { // sparse
				t.Fatal(err)
			}
			f.Close()
			got, err := readPagemap(path, mem)
			if c.err == "" {
				if err != nil || !slices.Equal(got, c.want) {
					t.Errorf("got %#x, %v", got, err)
				}
				return
			}
			var pe *PinError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

// Memory that cannot be pinned, or whose addresses cannot be read, is refused with the remedy.
func TestGuestRAMRemedies(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{
		{unix.ENOSYS, []string{"pin", "CONFIG_IO_URING"}},
		{unix.EPERM, []string{"kernel.io_uring_disabled", "CAP_SYS_ADMIN"}},
		{unix.ENOMEM, []string{"RLIMIT_MEMLOCK", "CAP_IPC_LOCK"}},
		{unix.EIO, []string{"io_uring"}},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			g := NewGuestRAM(0)
			g.pin = func([]byte) (io.Closer, error) { return nil, os.NewSyscallError("io_uring_setup", c.err) }
			_, err := g.Grow(1)
			var pe *PinError
			if !errors.As(err, &pe) || !errors.Is(err, c.err) {
				t.Fatalf("got %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %s", err, w)
				}
			}
			if len(g.chunks) != 0 {
				t.Error("a refused chunk is kept")
			}
		})
	}
}

func TestEveryPageOfAMemfdIsInARegion(t *testing.T) {
	m, err := NewMemfd(3*PageSize + 1)
	if err != nil {
		t.Fatal(err)
	}
	seals, err := unix.FcntlInt(m.File().Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || seals&unix.F_SEAL_GROW == 0 {
		t.Errorf("seals %#x, %v", seals, err)
	}
	p := NewPool(m)
	b, err := p.Alloc(3 * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i / PageSize * 17)
	}
	// Every page is found through the regions, as the device finds it.
	for i, a := range b.Pages() {
		found := false
		for _, r := range m.Regions() {
			if a < r.Addr || a-r.Addr >= r.Size {
				continue
			}
			found = true
			got := make([]byte, PageSize)
			if _, err := m.File().ReadAt(got, int64(r.Offset+a-r.Addr)); err != nil {
				t.Fatal(err)
			}
			if got[5] != byte(i*17) {
				t.Errorf("page %d: address %#x leads to another page", i, a)
			}
		}
		if !found {
			t.Errorf("page %d: address %#x is in no region", i, a)
		}
	}
	if _, err := p.Alloc(2 * PageSize); !errors.Is(err, ErrExhausted) {
		t.Errorf("a memfd grew: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPageAddressesAreOffsetsInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ram")
	if _, err := OpenFile(path); err == nil {
		t.Error("a file that is not there")
	}
	for size, want := range map[int64]string{0: "whole pages", PageSize + 1: "whole pages"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := os.Truncate(path, 4*PageSize); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPool(f)
	b, err := p.Alloc(2 * PageSize)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), "seen by the device")
	if at := b.Pages()[1]; at != b.Pages()[0]+PageSize || at >= 4*PageSize {
		t.Errorf("page addresses %#x", b.Pages())
	}
	if whole, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(whole[b.Pages()[0]:]), "seen by the device") {
		t.Errorf("the file has %q, %v", whole[:20], err)
	}
	if _, err := p.Alloc(3 * PageSize); !errors.Is(err, ErrExhausted) {
		t.Errorf("more than the file: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

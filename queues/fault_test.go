//go:build linux

package queues

import (
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"golang.org/x/sys/unix"
)

// sharedFile maps a memory file of n bytes and returns the mapping and a
// function that truncates the file.
func sharedFile(t *testing.T, n int) (mem []byte, truncate func(n int64)) {
	t.Helper()
	fd, err := unix.MemfdCreate("queues-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skip("no memfd: ", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return mem, func(n int64) {
		if err := unix.Ftruncate(fd, n); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAccessToTruncatedMemoryIsAFault truncates the memory under every operation. Each returns a fault, none ends the
// process, and the remaining memory still works.
func TestAccessToTruncatedMemoryIsAFault(t *testing.T) {
	const size = 1 << 20
	mem, truncate := sharedFile(t, size)
	m := NewMemory([]Region{{0x100000, mem}})
	buf := make([]byte, 100000)
	if err := m.Write(0x100000+size-100000, buf); err != nil {
		t.Fatal(err)
	}
	truncate(abi.PageSize)
	const gone = 0x100000 + 8*abi.PageSize
	wantFault(t, m.Read(gone, buf), WhyBroken)
	wantFault(t, m.Write(gone+13, buf), WhyBroken)
	wantFault(t, m.Write(0x100000, buf), WhyBroken) // starts where there is memory
	wantFault(t, m.Read(0x100000+abi.PageSize-1, buf[:2]), WhyBroken)
	if !raceEnabled {
		_, err := m.Load32(gone)
		wantFault(t, err, WhyBroken)
		_, err = m.Load64(gone)
		wantFault(t, err, WhyBroken)
		wantFault(t, m.Store32(gone, 1), WhyBroken)
		wantFault(t, m.store64(gone, 1), WhyBroken)
		_, err = m.CompareAndSwap64(gone, 0, 1)
		wantFault(t, err, WhyBroken)
		_, err = m.FetchAdd64(gone, 1)
		wantFault(t, err, WhyBroken)
	}

	if err := m.Write(0x100000, buf[:abi.PageSize]); err != nil {
		t.Error("the page that is left:", err)
	}
	truncate(size)
	if err := m.Write(gone, buf); err != nil {
		t.Error("memory that came back:", err)
	}
}

// TestReadOnlyMapping writes where only reading is possible.
func TestReadOnlyMapping(t *testing.T) {
	mem, _ := sharedFile(t, abi.PageSize)
	if err := unix.Mprotect(mem, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	m := NewMemory([]Region{{0, mem}})
	wantFault(t, m.Write(0, make([]byte, 8)), WhyBroken)
	if !raceEnabled {
		wantFault(t, m.store64(8, 1), WhyBroken)
	}
	if err := m.Read(0, make([]byte, 8)); err != nil {
		t.Error(err)
	}
}

// TestFaultSettingKept checks that the goroutine's own setting is preserved, and that faults
// elsewhere are not taken for the guest's.
func TestFaultSettingKept(t *testing.T) {
	mem, truncate := sharedFile(t, 2*abi.PageSize)
	m := NewMemory([]Region{{0, mem}})
	truncate(abi.PageSize)
	for _, set := range []bool{true, false} {
		old := debug.SetPanicOnFault(set)
		if err := m.Write(abi.PageSize, []byte{1}); err == nil {
			t.Error("no fault")
		}
		if err := m.Write(0, []byte{1}); err != nil {
			t.Error(err)
		}
		if got := debug.SetPanicOnFault(old); got != set {
			t.Errorf("setting %t became %t", set, got)
		}
	}

	// The host's own buffer breaks, not the guest's memory: a panic.
	own := mem[abi.PageSize:]
	guest := NewMemory([]Region{{0, make([]byte, 64)}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a fault of the host's own memory was hidden")
			}
		}()
		_ = guest.Write(0, own[:64])
	}()
}

// TestTruncatedWhileInUse takes memory away while another goroutine uses it.
func TestTruncatedWhileInUse(t *testing.T) {
	const size = 1 << 20
	mem, truncate := sharedFile(t, size)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			m := NewMemory([]Region{{0, mem}})
			buf := make([]byte, size)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := m.Read(0, buf); err != nil && !strings.Contains(err.Error(), WhyBroken) {
					t.Error(err)
					return
				}
				if !raceEnabled {
					_, _ = m.FetchAdd64(size-8, 1)
				}
			}
		}()
	}
	for range 200 {
		truncate(abi.PageSize)
		truncate(size)
	}
	close(stop)
	wg.Wait()
}

package guestmem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func memfd(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

const rw = unix.PROT_READ | unix.PROT_WRITE

// TestOnlyWhatWasAskedForIsMapped: only the requested part of a file is mapped, in whole pages, and
// no memory beyond it can be accessed.
func TestOnlyWhatWasAskedForIsMapped(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, c := range []struct{ file, offset, size, pages uint64 }{
		{3 * page, 0, 3 * page, 3}, {1 << 46, 1 << 45, page, 1}, {2*page + 1, page, page + 1, 2}, {3 * page, page + 1, page, 2}, {page, 0, page - 1, 1}, {page, 1, 1, 1},
	} {
		fd := memfd(t, int64(c.file))
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		if uint64(st.Blksize) != page {
			t.Skipf("this machine's memfds are made of pages of %d bytes", st.Blksize)
		}
		b := NewBudget("test", Attachment)
		if _, err := b.Map(fd, c.offset, c.file-c.offset+1, rw); err == nil || !strings.Contains(err.Error(), "the file has only") {
			t.Errorf("%+v: a byte behind the file's end: %v", c, err)
		}
		m, err := b.Map(fd, c.offset, c.size, rw)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if u := b.Usage(); u.Bytes != c.pages*page || u.Maps != 1 || u.Refused != 0 || uint64(len(m.Mem)) != c.size || cap(m.Mem) != len(m.Mem) {
			t.Errorf("%+v: %+v, %d bytes", c, u, len(m.Mem))
		}
		m.Mem[c.size-1] = 42
		var last [1]byte
		if _, err := unix.Pread(fd, last[:], int64(c.offset+c.size-1)); err != nil || last[0] != 42 {
			t.Errorf("%+v: %d at the end, %v", c, last, err)
		}
		m.Unmap()
		m.Unmap() // once more is nothing
		if u := b.Usage(); u != (Usage{}) {
			t.Errorf("%+v: %+v is left", c, u)
		}
	}
}

// TestMappingsAreChargedToPartAndWhole: a mapping is charged to the part's budget and to the whole.
// One that is too much for either is refused with a reason and counted, and charged to neither.
func TestMappingsAreChargedToPartAndWhole(t *testing.T) {
	page := uint64(os.Getpagesize())
	fd := memfd(t, 1<<30)
	whole := NewBudget("the NIC", Limit{10 * page, 6})
	a, b := whole.Part("guest a", Limit{8 * page, 3}), whole.Part("guest b", Limit{8 * page, 4})
	var maps []*Mapping
	take := func(from *Budget, pages uint64, says string) {
		t.Helper()
		m, err := from.Map(fd, 0, pages*page, rw)
		switch {
		case says == "" && err != nil, says != "" && (err == nil || !strings.Contains(err.Error(), says) || !errors.Is(err, unix.ENOSPC)):
			t.Errorf("%d pages: %v, want %q", pages, err, says)
		case err == nil:
			maps = append(maps, m)
		}
	}
	take(a, 9, "36 KiB of memory are too much for guest a, which has 0 bytes mapped and may have 32 KiB")
	take(a, 8, "")
	take(a, 1, "guest a")
	take(b, 3, "12 KiB of memory are too much for the NIC")
	take(b, 1, "")
	take(b, 1, "")
	take(b, 1, "the NIC")
	if got := fmt.Sprint(whole.Usage(), a.Usage(), b.Usage()); got != fmt.Sprint(Usage{Limit{10 * page, 3}, 4}, Usage{Limit{8 * page, 1}, 2}, Usage{Limit{2 * page, 2}, 2}) {
		t.Errorf("used %s", got)
	}
	maps[0].Unmap()
	for range 3 {
		take(a, 1, "")
	}
	take(a, 1, "one more piece of memory is too many for guest a, which has 3")
	take(b, 1, "")
	take(b, 1, "one more piece of memory is too many for the NIC")
	for _, m := range maps[1:] {
		m.Unmap()
	}
	if u := whole.Usage(); u.Limit != (Limit{}) || u.Refused != 6 {
		t.Errorf("%+v is left", u)
	}
}

// TestDefaultsLeaveRoom: attachments that use all of their default limits do not exhaust the limits
// of a Linux process.
func TestDefaultsLeaveRoom(t *testing.T) {
	if NIC.Bytes > 1<<46 || NIC.Maps > 65530/2 || NIC.Bytes/Attachment.Bytes < 16 || NIC.Maps/Attachment.Maps < 16 {
		t.Errorf("%+v of %+v", Attachment, NIC)
	}
}

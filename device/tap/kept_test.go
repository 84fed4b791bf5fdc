package tap

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// attic is a Keeper that holds descriptors.
type attic struct {
	Keeper
	fds []int
}

func (a attic) Take(string) []int { return a.fds }

// TestKeptIsVerified: kept descriptors are used if they are queues of the device, and as many as
// requested; otherwise all of them are closed.
func TestKeptIsVerified(t *testing.T) {
	if fds := takeKept(nil, "vp0", unix.IFF_TAP, 1); fds != nil {
		t.Errorf("%d of nobody", fds)
	}
	for _, n := range []int{0, 1, 2, 3} {
		for _, queues := range []int{1, 2, 3} {
			var fds []int
			for range n {
				f, err := os.Open(os.DevNull) // no TAP
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 1000)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, fd)
			}
			if got := takeKept(attic{fds: fds}, "vp0", unix.IFF_TAP, queues); got != nil {
				t.Errorf("%d descriptors of something else are taken as %d queues", n, queues)
			}
			for _, fd := range fds {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
					t.Errorf("%d descriptors for %d queues: one is left open", n, queues)
				}
			}
		}
	}
}

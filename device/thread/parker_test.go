package thread

import (
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEveryKindOfEventEndsAWait checks that each kind of event ends one wait and that wait reports whether it was
// input, and lists the descriptors that rang.
func TestEveryKindOfEventEndsAWait(t *testing.T) {
	p, err := newParker()
	if err != nil {
		t.Fatal(err)
	}
	ring := func() (fd int) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	write := func(fd int) {
		if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	const ever = math.MaxInt64 / 4
	uplink, ports, bells := ring(), ring(), []int{ring(), ring(), ring()}
	for _, fd := range bells {
		if err := p.listen(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, held := range []int64{0, ever} {
		ends := func(what string, want bool, rung ...int) {
			t.Helper()
			ns := int64(ever)
			if !want {
				ns = 1
			}
			if input := p.wait(uplink, ports, ns, held); input != want || !slices.Equal(p.rung, rung) {
				t.Errorf("held %d, %s: input %t, %v rang", held, what, input, p.rung)
			}
		}
		ends("nothing", false)
		p.wake()
		p.wake()
		ends("woken", true)
		ends("woken once", false)
		write(bells[1])
		ends("a bell", true, bells[1])
		ends("it rang once", false)
		write(bells[0])
		write(bells[2])
		ends("two bells", true, bells[0], bells[2])
		for what, fd := range map[string]int{"the uplink": uplink, "a port": ports} {
			write(fd)
			ends(what, true)
			ends(what+" still", true)
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil {
				t.Fatal(err)
			}
			ends(what+" no more", false)
		}
	}
	if err := p.listen(bells[0], false); err != nil {
		t.Error(err)
	}
	write(bells[0])
	if p.wait(-1, -1, 1, 0) || len(p.rung) != 0 {
		t.Errorf("%v rang, which is not listened to", p.rung)
	}
	if p.listen(bells[0], false) == nil || p.listen(-1, true) == nil {
		t.Error("listening to nothing")
	}
	p.close()
	p.wake() // harmless
}

package ivshmem

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Files is the number of descriptors of a window.
const Files = 1 + bells + Vectors

// FDs returns the descriptors of a window, for Adopt in another process. The window keeps ownership
// of them.
func (w *Window) FDs() []int {
	return slices.Concat([]int{int(w.file.Fd())}, w.bell[:], w.vectors[:])
}

// Adopt returns a window made of the descriptors that FDs returned in another process. That process
// serves the window to QEMU; this one only listens. Adopt owns the descriptors, also when it fails.
func Adopt(fds []int) (_ *Window, err error) {
	w := &Window{bell: noBells, vectors: noVectors, signals: eventfd.NewLine(Vectors)}
	if len(fds) != Files {
		closeAll(fds)
		return nil, fmt.Errorf("ivshmem window: %d descriptors, want %d", len(fds), Files)
	}
	w.file = os.NewFile(uintptr(fds[0]), "vnic-window")
	copy(w.bell[:], fds[1:])
	copy(w.vectors[:], fds[1+bells:])
	defer func() {
		if err != nil {
			_ = w.Close()
			err = fmt.Errorf("ivshmem window: %w", err)
		}
	}()
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if seals, err := unix.FcntlInt(w.file.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&want != want {
		return nil, fmt.Errorf("the memory's seals are %#x (%v), want %#x", seals, err, want)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil || st.Size != abi.WindowSize {
		return nil, fmt.Errorf("the memory has %d bytes (%v), want %d", st.Size, err, abi.WindowSize)
	}
	w.dev, w.ino = st.Dev, st.Ino
	for _, fd := range fds[1:] {
		if err := eventfd.Check(fd); err != nil {
			return nil, err
		}
	}
	for i, fd := range w.vectors {
		if err := w.Signal(i, fd); err != nil {
			return nil, err
		}
	}
	w.mem, err = unix.Mmap(fds[0], 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return w, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

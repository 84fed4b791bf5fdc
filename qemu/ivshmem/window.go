package ivshmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
	"github.com/falcon-vnic/vnic/queues/ring"
)

const (
	// Vectors is the number of MSI-X vectors of a window; QEMU's device must be given the same
	// number. The first belongs to the control block, each other one to an event queue.
	Vectors = 1 + eventQueues

	eventQueues = 4
	// bells is the number of doorbells: one for the bell ring, one for the control block.
	bells = 2
)

// Offsets in the window. Drivers find them by the capability chain.
const (
	capOffset     = 64
	bellsOffset   = 0x01000
	eventsOffset  = 0x03000
	eventsStride  = 0x03000
	controlOffset = 0x10000
	adminSQOffset = 0x19000
	adminCQOffset = 0x22000
)

var (
	noVectors = [Vectors]int{-1, -1, -1, -1, -1}
	noBells   = [bells]int{-1, -1}
)

var (
	bellsLayout  = ring.QueueLayout(abi.WindowBellsLog2, 4)  // records of 16 bytes
	eventsLayout = ring.QueueLayout(abi.WindowEventsLog2, 3) // records of 8 bytes
	adminLayout  = ring.AdminLayout(abi.MaxAdminEntries)
)

// Window is the shared memory of one function with the eventfds of its doorbells and those that
// interrupt the guest.
type Window struct {
	mem      []byte
	file     *os.File
	dev, ino uint64
	bell     [bells]int        // eventfds
	vectors  [Vectors]int      // eventfds
	signals  *eventfd.Notifier // the eventfds that interrupt the guest: vectors, or those of Signal

	mu        sync.Mutex
	listening bool
	held      int // number of hold calls without drop
	closed    bool
}

// NewWindow creates the window of a function.
func NewWindow(function uint32, kind abi.FunctionType) (_ *Window, err error) {
	w := &Window{bell: noBells, vectors: noVectors, signals: eventfd.NewNotifier(Vectors)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("ivshmem window: %w", err), w.Close())
		}
	}()
	fd, err := unix.MemfdCreate("vnic-window", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	w.file = os.NewFile(uintptr(fd), "vnic-window")
	if err := w.file.Truncate(abi.WindowSize); err != nil {
		return nil, err
	}
	// A process that gets the file can write to it, but not change its size or its seals.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	w.dev, w.ino = st.Dev, st.Ino
	if w.mem, err = unix.Mmap(fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	for i := range w.bell {
		if w.bell[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, err
		}
	}
	for i := range w.vectors {
		if w.vectors[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, err
		}
		if err := w.Signal(i, w.vectors[i]); err != nil {
			return nil, err
		}
	}
	w.describe(function, kind)
	return w, nil
}

// describe writes the window's header and its capability chain.
func (w *Window) describe(function uint32, kind abi.FunctionType) {
	(&abi.WindowHeader{
		Magic: abi.Magic, Major: abi.VersionMajor, Minor: abi.VersionMinor, Length: abi.WindowSize,
		Function: function, FunctionType: kind, FirstCap: capOffset,
	}).Marshal(w.mem)
	caps := []abi.Capability{{Type: abi.CapBells, Version: 1, Offset: bellsOffset, Length: uint32(bellsLayout.Size())}}
	for i := range uint32(eventQueues) {
		caps = append(caps, abi.Capability{Type: abi.CapEvents, Version: 1, Offset: eventsOffset + i*eventsStride, Length: uint32(eventsLayout.Size())})
	}
	caps = append(
		caps,
		abi.Capability{Type: abi.CapControl, Version: 1, Offset: controlOffset, Length: control.Size},
		abi.Capability{Type: abi.CapAdminSQ, Version: 1, Offset: adminSQOffset, Length: uint32(adminLayout.Size())},
		abi.Capability{Type: abi.CapAdminCQ, Version: 1, Offset: adminCQOffset, Length: uint32(adminLayout.Size())},
	)
	at := uint32(capOffset)
	for i := range caps {
		if i+1 < len(caps) {
			caps[i].Next = at + abi.CapabilitySize
		}
		caps[i].Marshal(w.mem[at:])
		at += abi.CapabilitySize
	}
}

// bells returns the memory of the bell ring.
func (w *Window) bells() []byte { return w.mem[bellsOffset:][:bellsLayout.Size()] }

// events returns the memory of an event queue; the first is 0.
func (w *Window) events(queue int) []byte {
	return w.mem[eventsOffset+queue*eventsStride:][:eventsLayout.Size()]
}

// adminSQ and adminCQ return the memory of the admin queues.
func (w *Window) adminSQ() []byte { return w.mem[adminSQOffset:][:adminLayout.Size()] }
func (w *Window) adminCQ() []byte { return w.mem[adminCQOffset:][:adminLayout.Size()] }

// Ring emulates a write of value to the doorbell register.
func (w *Window) Ring(value uint32) {
	if value < bells {
		_, _ = unix.Write(w.bell[value], one[:]) // nonblocking; if the counter is full the listener is woken anyway
	}
}

var one = [8]byte{1}

// File returns the descriptor of the window's memory, which the window owns.
func (w *Window) File() int { return int(w.file.Fd()) }

// ReadAt reads from the window, for clients that do not map its file. Bytes outside the window read
// as zero.
func (w *Window) ReadAt(b []byte, off uint64) {
	clear(b)
	copy(b, w.mem[min(off, uint64(len(w.mem))):])
}

// WriteAt writes to the window, for clients that do not map its file. Bytes outside the window are
// not written.
func (w *Window) WriteAt(b []byte, off uint64) { copy(w.mem[min(off, uint64(len(w.mem))):], b) }

// Signal sets the eventfd that interrupts the guest by a vector; negative: none. The caller may
// close fd afterwards.
func (w *Window) Signal(vector, fd int) error { return w.signals.Event(vector).Set(fd) }

// Interrupt raises a vector. It does not block.
func (w *Window) Interrupt(vector int) { w.signals.Event(vector).Signal() }

// Idle reports whether all raised vectors have been signalled.
func (w *Window) Idle() bool { return w.signals.Idle() }

// Is reports whether a file is this window's memory.
func (w *Window) Is(dev, ino uint64) bool { return w.dev == dev && w.ino == ino }

// Close releases the window as soon as nothing uses it.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.listening || w.held != 0 {
		return nil
	}
	return w.release()
}

func (w *Window) release() error {
	var errs []error
	w.signals.Close()
	if w.mem != nil {
		errs = append(errs, unix.Munmap(w.mem))
	}
	if w.file != nil {
		errs = append(errs, w.file.Close())
	}
	for _, fd := range slices.Concat(w.vectors[:], w.bell[:]) {
		if fd != eventfd.None {
			errs = append(errs, unix.Close(fd))
		}
	}
	w.mem, w.file, w.bell, w.vectors = nil, nil, noBells, noVectors
	return errors.Join(errs...)
}

// claim makes the caller the only listener.
func (w *Window) claim() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return net.ErrClosed
	case w.listening:
		return errors.New("somebody listens already")
	}
	w.listening = true
	return nil
}

func (w *Window) unclaim() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listening = false
	w.releaseUnused()
}

// hold keeps the window open until drop.
func (w *Window) hold() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return net.ErrClosed
	}
	w.held++
	return nil
}

func (w *Window) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held--
	w.releaseUnused()
}

func (w *Window) releaseUnused() {
	if w.closed && !w.listening && w.held == 0 {
		_ = w.release()
	}
}

// Numbers of the client-server protocol.
const (
	protocolVersion = 0
	sharedMemory    = -1 // instead of a peer's number
	ourPeer         = 0  // this process; its eventfds are the doorbells
	guestPeer       = 1  // the guest, which has no other peer
)

// Introduce sends everything that QEMU needs to a QEMU that has just connected, and which waits for
// that. Nothing is sent after that; the connection only stays open to show when QEMU ends.
func (w *Window) Introduce(conn *net.UnixConn) error {
	type message struct {
		value int64
		fd    int
	}
	all := []message{
		{protocolVersion, eventfd.None},
		{guestPeer, eventfd.None},
		{sharedMemory, int(w.file.Fd())},
	}
	for _, fd := range w.bell {
		all = append(all, message{ourPeer, fd})
	}
	for _, fd := range w.vectors {
		all = append(all, message{guestPeer, fd})
	}
	for _, m := range all {
		var rights []byte
		if m.fd != eventfd.None {
			rights = unix.UnixRights(m.fd)
		}
		if _, _, err := conn.WriteMsgUnix(binary.LittleEndian.AppendUint64(nil, uint64(m.value)), rights, nil); err != nil {
			return fmt.Errorf("ivshmem: %w", err)
		}
	}
	return nil
}

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
	w := &Window{bell: noBells, vectors: noVectors, signals: eventfd.NewNotifier(Vectors)}
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

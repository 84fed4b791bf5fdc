package supervisor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pulse shows that the event loop of a worker's thread makes progress. It is in memory that
// supervisor and worker share, so the supervisor can read it without the worker's help.
type Pulse struct {
	thread atomic.Int32 // thread id; 0: no thread to watch
	turns  atomic.Uint64
}

// Begin starts the watch of the calling thread.
func (p *Pulse) Begin() { p.thread.Store(int32(unix.Gettid())) }

// Turn counts a turn of the event loop. The thread must call it at least every half second.
func (p *Pulse) Turn() { p.turns.Add(1) }

// End ends the watch, because the thread ends on purpose.
func (p *Pulse) End() { p.thread.Store(0) }

const pulseSize = 4096

// givenPulse is the name under which a worker gets its pulses.
const givenPulse = "pulse"

// Pulses holds the pulses of a worker's threads. Older programs use only the first.
type Pulses [maxThreads]struct {
	Pulse
	_ [pulseSize/maxThreads - unsafe.Sizeof(Pulse{})]byte // gives each thread its own cache lines
}

// maxThreads is the largest number of watched threads: a NIC has at most 16 shards.
const maxThreads = 16

// newPulses creates pulses and returns them with the descriptor of their memory.
func newPulses() (p *Pulses, fd int, err error) {
	fd, err = unix.MemfdCreate("vnic-pulse", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, -1, fmt.Errorf("pulse: memfd_create: %w", err)
	}
	if err = unix.Ftruncate(fd, pulseSize); err == nil {
		p, err = mapPulses(fd)
	}
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("pulse: %w", err), unix.Close(fd))
	}
	return p, fd, nil
}

func mapPulses(fd int) (*Pulses, error) {
	b, err := unix.Mmap(fd, 0, pulseSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return (*Pulses)(unsafe.Pointer(&b[0])), nil
}

func (p *Pulses) unmap() {
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(p)), pulseSize))
}

package supervisor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pulse shows that one of a worker's threads turns. It lies in memory that supervisor and
// worker share, so that reading it needs nothing of the worker.
type Pulse struct {
	thread atomic.Int32 // its id; 0: there is none to watch
	turns  atomic.Uint64
}

// Begin says that the calling thread turns from now on.
func (p *Pulse) Begin() { p.thread.Store(int32(unix.Gettid())) }

// Turn is called by the thread at least every half second.
func (p *Pulse) Turn() { p.turns.Add(1) }

// End says that the thread ends in order.
func (p *Pulse) End() { p.thread.Store(0) }

const pulseSize = 4096

// givenPulse is the name under which a worker gets its pulse.
const givenPulse = "pulse"

// Pulses are those of a worker's threads. A program of before there were several knows the first.
type Pulses [maxThreads]struct {
	Pulse
	_ [pulseSize/maxThreads - unsafe.Sizeof(Pulse{})]byte // of each processor's own
}

// maxThreads is how many threads are watched: a NIC has 16 shards at most.
const maxThreads = 16

// newPulses makes pulses and the descriptor of their memory.
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

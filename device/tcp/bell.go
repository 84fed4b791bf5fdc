package tcp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// bell wakes the pump. It is an eventfd, and no channel: a goroutine that a shard's thread makes runnable
// would wait in the queue of the processor (of Go's scheduler) that this thread keeps, until another one
// steals it. The kernel wakes a thread that waits for the descriptor at once.
type bell struct {
	fd    int
	state atomic.Uint32
}

// States of a bell.
const (
	working uint32 = iota // its owner works
	parked                // its owner sleeps, or is about to
	rung                  // there is something to do
)

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

func newBell() *bell {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		panic("tcp: eventfd: " + err.Error())
	}
	return &bell{fd: fd}
}

// ring says that there is something to do. Any goroutine may call it.
func (b *bell) ring() {
	if b.state.Swap(rung) == parked {
		_, _ = unix.Write(b.fd, one)
	}
}

// wait returns when there is something to do. Its owner looks for that only after wait.
func (b *bell) wait() {
	if b.state.CompareAndSwap(working, parked) {
		var count [8]byte
		_, _ = unix.Read(b.fd, count[:])
	}
	b.state.Store(working)
}

func (b *bell) close() { _ = unix.Close(b.fd) }

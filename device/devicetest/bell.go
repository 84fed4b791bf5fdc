package devicetest

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

var bellLayout = ring.QueueLayout(abi.WindowBellsLog2, 4)

// Bell is a bell ring in plain memory, and the driver that fills it.
type Bell struct {
	fd       int
	Mem      ring.Mem
	consumer *ring.Consumer
	Driver   *ring.Producer
	Closed   atomic.Bool
}

func NewBell(t testing.TB) *Bell {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	mem := make(ring.Mem, bellLayout.Size())
	return &Bell{fd: fd, Mem: mem, consumer: ring.NewConsumer(mem, bellLayout), Driver: ring.NewProducer(mem, bellLayout)}
}

func (b *Bell) FD() int { return b.fd }

func (b *Bell) Take(out []byte) (n int, err error) {
	ready, err := b.consumer.Poll()
	if err != nil {
		return 0, err
	}
	for ; ready > 0 && n+abi.DoorbellSize <= len(out); ready-- {
		_ = b.consumer.Read(out[n : n+abi.DoorbellSize])
		b.consumer.Take()
		n += abi.DoorbellSize
	}
	return n, b.consumer.Commit()
}

func (b *Bell) Arm() (bool, error) {
	n, err := b.consumer.Arm()
	return n > 0, err
}

func (b *Bell) Close() { b.Closed.Store(true) }

// Kick is the write to BAR0.
func (b *Bell) Kick() { _, _ = unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Post puts a record in the ring, and kicks if asked to.
func (b *Bell) Post(t testing.TB, d abi.Doorbell) (kicked bool) {
	t.Helper()
	var raw [abi.DoorbellSize]byte
	d.Marshal(raw[:])
	if err := b.Driver.Push(raw[:]); err != nil {
		t.Fatal(err)
	}
	_, need, err := b.Driver.Publish()
	if err != nil {
		t.Fatal(err)
	}
	if need {
		b.Kick()
	}
	return need
}

// Taken is how many records the device has taken.
func (b *Bell) Taken() uint32 {
	n, _ := b.Mem.Load32(abi.QueueHeaderConsumer)
	return n
}

package window

import (
	"errors"
	"fmt"
	"os"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Window is a mapped window, for one session.
type Window struct {
	regs   []byte // BAR0
	ring   *ring.Producer
	record [abi.DoorbellSize]byte
	rung   uint64

	queues []*eventQueue
	noIRQ  error // why there are no interrupts
	busy   listening
	pci    *PCI // closed with the window; nil: the device stays open
}

// Open finds and maps the ivshmem window of a function, for a driver that also has another way to
// the NIC.
func Open(function uint32) (*Window, error) { return OpenIn(sysfs, function) }

// OpenIn is Open with a different folder of PCI devices.
func OpenIn(dir string, function uint32) (*Window, error) {
	p, err := findDevice(dir, function, func(k kind) bool { return !k.own })
	if err != nil {
		return nil, err
	}
	w := p.Window()
	w.pci = p
	return w, nil
}

// Window returns the device's window, for one session. The device must stay open longer than the
// window.
func (p *PCI) Window() *Window {
	w := &Window{regs: p.regs, noIRQ: p.noIRQ}
	w.ring = ring.NewProducer(ring.Mem(p.blocks.bells.of(p.shared)), ring.QueueLayout(abi.WindowBellsLog2, 4))
	if p.vfio == nil {
		return w
	}
	for i, b := range p.blocks.events {
		if 1+i == len(p.vfio.irqs) {
			break
		}
		w.queues = append(w.queues, &eventQueue{
			irq: p.vfio.irqs[1+i], ring: ring.NewConsumer(ring.Mem(b.of(p.shared)), ring.QueueLayout(abi.WindowEventsLog2, 3)),
		})
	}
	return w
}

// Ring sends a doorbell to the device. It returns ring.ErrFull if the bell ring is full.
func (w *Window) Ring(d *abi.Doorbell) error {
	d.Marshal(w.record[:])
	if err := w.ring.Push(w.record[:]); err != nil {
		return err
	}
	_, needBell, err := w.ring.Publish()
	if needBell {
		w.rung++
		store32(w.regs, abi.WindowDoorbell, 0)
	}
	return err
}

// Rung returns how often the device's register was written because the device asked for it.
func (w *Window) Rung() uint64 { return w.rung }

// Taken reports whether the device has taken all records.
func (w *Window) Taken() (bool, error) {
	waits, err := w.ring.Pending(w.ring.Next() - 1)
	return !waits, err
}

// Vectors returns the number of event queues that interrupt this driver. If it is 0 the error says
// why.
func (w *Window) Vectors() (int, error) { return len(w.queues), w.noIRQ }

// Listen calls f with the number of each CQ that has an event, from one goroutine for each vector,
// until Close. If the device breaks the rules f gets an error, and that vector delivers no further
// events.
func (w *Window) Listen(f func(cqn uint32, err error)) {
	w.busy.mu.Lock()
	defer w.busy.mu.Unlock()
	if w.busy.closed {
		return
	}
	for i, q := range w.queues {
		w.busy.wg.Go(func() {
			if err := q.listen(f); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed) {
				f(0, fmt.Errorf("event queue %d: %w", i+1, err))
			}
		})
	}
}

// Close ends Listen. It also releases the device if the window owns it.
func (w *Window) Close() {
	w.busy.stop(w.queues)
	if w.pci != nil {
		w.pci.Close()
	}
	w.regs = nil
}

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
	pci    *PCI // closed with the window; nil: it lives on
}

// Open finds and maps the window of a function beside another way to the NIC.
func Open(function uint32) (*Window, error) { return OpenIn(sysfs, function) }

// OpenIn is Open with another folder of PCI devices than that of sysfs.
func OpenIn(dir string, function uint32) (*Window, error) {
	p, err := findDevice(dir, function, func(k kind) bool { return !k.own })
	if err != nil {
		return nil, err
	}
	w := p.Window()
	w.pci = p
	return w, nil
}

// Window begins to use the device's window, for one session. The device must live longer.
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

// Ring hands a doorbell to the device, or returns ring.ErrFull.
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

// Rung is how often the device asked to be rung, and the register was written.
func (w *Window) Rung() uint64 { return w.rung }

// Taken reports whether the device has taken all records.
func (w *Window) Taken() (bool, error) {
	waits, err := w.ring.Pending(w.ring.Next() - 1)
	return !waits, err
}

// Vectors is how many event queues interrupt this driver; without any the error
// says why.
func (w *Window) Vectors() (int, error) { return len(w.queues), w.noIRQ }

// Listen calls f, from a goroutine for each vector, with the number of each CQ that
// has news, until Close. f gets an error when the device breaks the rules; nothing
// more comes of that vector then.
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

// Close ends Listen, and gives the device back if nobody else has it.
func (w *Window) Close() {
	w.busy.stop(w.queues)
	if w.pci != nil {
		w.pci.Close()
	}
	w.regs = nil
}

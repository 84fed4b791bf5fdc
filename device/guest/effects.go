package guest

import "github.com/falcon-vnic/vnic/queues"

// Effects is what a Step wants done for drivers that takes a system call. The loop around the
// shard does it when the Step is over, on the same thread.
type Effects struct {
	interrupts []interrupt
}

type interrupt struct {
	irq    queues.Interrupter
	vector int
}

// Do carries everything out. Nothing of it waits.
func (e *Effects) Do() {
	for i := range e.interrupts {
		e.interrupts[i].irq.Interrupt(e.interrupts[i].vector)
	}
	clear(e.interrupts)
	e.interrupts = e.interrupts[:0]
}

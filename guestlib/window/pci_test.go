package window

import (
	"os"
	"sync"
	"testing"
)

// TestADeviceMayBeClosedWhileItInterrupts: Close ends the wait for interrupts, however many come
// meanwhile. The race detector makes this test stronger.
func TestADeviceMayBeClosedWhileItInterrupts(t *testing.T) {
	for range 300 {
		irq, interrupt, end := testInterrupt(t)
		p := &PCI{own: true, irq: make(chan struct{}, 1), vfio: &vfioDevice{container: -1, group: -1, device: -1, irqs: []*os.File{irq}}}
		p.wg.Go(func() { p.hear(irq) })
		closed := make(chan struct{})
		var device sync.WaitGroup
		device.Go(func() {
			for {
				select {
				case <-closed:
					return
				default:
					interrupt()
				}
			}
		})
		<-p.irq
		p.Close()
		close(closed)
		device.Wait()
		end()
		for range p.irq { // closed behind the last interrupt
		}
	}
}

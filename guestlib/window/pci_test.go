package window

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestADeviceMayBeClosedWhileItInterrupts: Close ends the wait for interrupts, however many come
// meanwhile. The race detector makes this test stronger.
func TestADeviceMayBeClosedWhileItInterrupts(t *testing.T) {
	for range 300 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		irq := os.NewFile(uintptr(fd), "interrupt")
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
					_, _ = unix.Write(ours, []byte{1, 0, 0, 0, 0, 0, 0, 0})
				}
			}
		})
		<-p.irq
		p.Close()
		close(closed)
		device.Wait()
		_ = unix.Close(ours)
		for range p.irq { // closed behind the last interrupt
		}
	}
}

package window

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// testEvents is a window in plain memory with one event queue, and the device's end of that queue.
func testEvents(t *testing.T) (w *Window, device *ring.Producer, mem ring.Mem, interrupt func()) {
	t.Helper()
	irq, interrupt, end := testInterrupt(t)
	layout := ring.QueueLayout(abi.WindowEventsLog2, 3)
	mem = make(ring.Mem, layout.Size())
	w = &Window{queues: []*eventQueue{{irq: irq, ring: ring.NewConsumer(mem, layout)}}}
	t.Cleanup(func() {
		w.Close()
		end()
	})
	return w, ring.NewProducer(mem, layout), mem, interrupt
}

// testInterrupt returns an interrupt's eventfd, and the device's end of it.
func testInterrupt(t *testing.T) (irq *os.File, interrupt, end func()) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	device, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "interrupt"), func() { _, _ = unix.Write(device, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }, func() { _ = unix.Close(device) }
}

// TestEveryEventArrivesOnceInOrder: every record arrives once and in order, although the device interrupts only when it
// is asked to (DEV-1009, DRV-1009). The race detector makes this test stronger.
func TestEveryEventArrivesOnceInOrder(t *testing.T) {
	w, device, _, interrupt := testEvents(t)
	got := make(chan uint32, 1)
	w.Listen(func(cqn uint32, err error) {
		if err != nil {
			t.Error(err)
		}
		got <- cqn
	})
	const total = 5000
	interrupts := 0
	var producer sync.WaitGroup
	producer.Go(func() {
		for i := range uint32(total) {
			var b [abi.WindowEventSize]byte
			(&abi.WindowEvent{CQN: i}).Marshal(b[:])
			for device.Push(b[:]) != nil {
				time.Sleep(10 * time.Microsecond)
			}
			_, wanted, err := device.Publish()
			if err != nil {
				t.Error(err)
			}
			if wanted {
				interrupts++
				interrupt()
			}
			if i%7 == 0 {
				time.Sleep(20 * time.Microsecond)
			}
		}
	})
	for want := range uint32(total) {
		select {
		case cqn := <-got:
			if cqn != want {
				t.Fatalf("record %d, want %d", cqn, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("record %d did not come", want)
		}
	}
	producer.Wait()
	t.Logf("%d interrupts for %d records", interrupts, total)
}

// TestAnImpossibleIndexIsReportedOnce: Listen reports an impossible index once, and Close ends it.
func TestAnImpossibleIndexIsReportedOnce(t *testing.T) {
	w, _, mem, interrupt := testEvents(t)
	errs := make(chan error, 10)
	w.Listen(func(_ uint32, err error) { errs <- err })
	_ = mem.Store32(abi.QueueHeaderProducer, 1<<20)
	interrupt()
	select {
	case err := <-errs:
		if !errors.Is(err, ring.ErrIndex) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("not noticed")
	}
	interrupt()
	w.Close()
	if len(errs) != 0 {
		t.Error(<-errs)
	}
	w.Listen(func(uint32, error) { t.Error("a closed window has events") })
}

// TestAWindowWorksWithoutInterrupts: without an IOMMU, or if another process has the device, the window works
// without interrupts and gives the reason.
func TestAWindowWorksWithoutInterrupts(t *testing.T) {
	withEvents := func() []byte {
		b := image(testFunction)
		events := ring.QueueLayout(abi.WindowEventsLog2, 3).Size()
		(&abi.Capability{Type: abi.CapBells, Version: 1, Offset: testBells, Length: uint32(ring.QueueLayout(abi.WindowBellsLog2, 4).Size()), Next: 300}).Marshal(b[256:])
		(&abi.Capability{Type: abi.CapEvents, Version: 1, Offset: 4 * testBells, Length: uint32(events)}).Marshal(b[300:])
		return b
	}
	for want, prepare := range map[string]func(dir string) []byte{
		"no event queues": func(string) []byte { return image(testFunction) },
		"has no IOMMU":    func(string) []byte { return withEvents() },
		"driver uio has": func(dir string) []byte {
			for name, to := range map[string]string{"iommu_group": "/groups/7", "driver": "/drivers/uio"} {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			return withEvents()
		},
		"not loaded": func(dir string) []byte {
			if err := os.Symlink("/groups/7", filepath.Join(dir, "iommu_group")); err != nil {
				t.Fatal(err)
			}
			return withEvents()
		},
	} {
		p := newPCI(t)
		dir := p.add("0000:00:08.0", "0x1af4", "0x1110", nil)
		if err := os.WriteFile(filepath.Join(dir, "resource2"), prepare(dir), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := OpenIn(p.dir, testFunction)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if n, err := w.Vectors(); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d vectors, %v; want %s", n, err, want)
		}
		if err := w.Ring(&abi.Doorbell{Kind: abi.DoorbellSQ}); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		w.Close()
	}
}

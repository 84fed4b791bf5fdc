package window

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// ErrNone says that the guest has no window of that function.
var ErrNone = errors.New("no window of this function among the PCI devices")

const (
	sysfs = "/sys/bus/pci/devices"
	// registers is the size of BAR0.
	registers = 256
)

// Window is a mapped window.
type Window struct {
	shared []byte // BAR2
	regs   []byte // BAR0
	ring   *ring.Producer
	record [abi.DoorbellSize]byte
	rung   uint64

	vfio   *vfioDevice // nil: mapped from sysfs
	queues []*eventQueue
	noIRQ  error // why there are no interrupts
	busy   listening
}

// Open finds and maps the window of a function.
func Open(function uint32) (*Window, error) { return OpenIn(sysfs, function) }

// OpenIn is Open with another folder of PCI devices than that of sysfs.
func OpenIn(dir string, function uint32) (*Window, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	var errs []error
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if text(at, "vendor") != "0x1af4" || text(at, "device") != "0x1110" {
			continue
		}
		w, err := openDevice(at, function)
		if err == nil {
			return w, nil
		}
		if !errors.Is(err, ErrNone) {
			errs = append(errs, fmt.Errorf("window %s: %w", e.Name(), err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, ErrNone
}

func text(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b))
}

// openDevice maps a device if its header says that it is the function's: with
// interrupts by vfio where the guest can, else from sysfs without.
func openDevice(dir string, function uint32) (_ *Window, err error) {
	w := &Window{}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	if err := switchOn(dir); err != nil {
		return nil, err
	}
	if w.shared, err = mapResource(filepath.Join(dir, "resource2"), 0); err != nil {
		return nil, err
	}
	blocks, err := findBlocks(w.shared, function)
	if err != nil {
		return nil, err
	}
	w.noIRQ = w.interrupt(dir, blocks)
	if w.vfio == nil {
		if w.regs, err = mapResource(filepath.Join(dir, "resource0"), registers); err != nil {
			return nil, err
		}
	}
	w.ring = ring.NewProducer(ring.Mem(blocks.bells.of(w.shared)), ring.QueueLayout(abi.WindowBellsLog2, 4))
	return w, nil
}

// interrupt opens the device by vfio and makes its event queues. After an error
// the window is as it was.
func (w *Window) interrupt(dir string, blocks blocks) error {
	if len(blocks.events) == 0 {
		return errors.New("the device has no event queues")
	}
	v, err := openVFIO(dir, len(blocks.events))
	if err != nil {
		return err
	}
	if len(v.shared) < len(w.shared) {
		v.close()
		return fmt.Errorf("vfio maps %d of %d bytes of the window", len(v.shared), len(w.shared))
	}
	_ = unix.Munmap(w.shared)
	w.vfio, w.shared, w.regs = v, v.shared, v.regs
	for i, irq := range v.irqs {
		w.queues = append(w.queues, &eventQueue{
			irq: irq, ring: ring.NewConsumer(ring.Mem(blocks.events[i].of(w.shared)), ring.QueueLayout(abi.WindowEventsLog2, 3)),
		})
	}
	return nil
}

// switchOn makes the device answer to accesses of its memory. A driver that has
// it, vfio-pci, does that itself.
func switchOn(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "enable"), []byte("1"), 0)
	if errors.Is(err, unix.EBUSY) && boundTo(dir) == vfioDriver {
		return nil
	}
	return err
}

// mapResource maps a resource file, whole if size is 0.
func mapResource(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size == 0 {
		fi, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if fi.Size() < abi.WindowHeaderSize || fi.Size() > 1<<30 {
			return nil, ErrNone // an ivshmem device of somebody else
		}
		size = int(fi.Size())
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %s: %w", path, err)
	}
	return m, nil
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

// Close ends Listen and unmaps the window.
func (w *Window) Close() {
	w.busy.stop(w.queues)
	if w.vfio != nil {
		w.vfio.close()
		w.shared, w.regs = nil, nil
	}
	for _, m := range [][]byte{w.shared, w.regs} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	w.shared, w.regs = nil, nil
}

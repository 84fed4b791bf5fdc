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
	// maxCaps bounds the chain: offsets grow, and this many are more than any device has.
	maxCaps = 64
)

// Window is a mapped window.
type Window struct {
	shared []byte // BAR2
	regs   []byte // BAR0
	ring   *ring.Producer
	record [abi.DoorbellSize]byte
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

// openDevice maps a device if its header says that it is the function's.
func openDevice(dir string, function uint32) (_ *Window, err error) {
	// Nobody else may have switched its memory on.
	if err := os.WriteFile(filepath.Join(dir, "enable"), []byte("1"), 0); err != nil {
		return nil, err
	}
	w := &Window{}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	if w.shared, err = mapResource(filepath.Join(dir, "resource2"), 0); err != nil {
		return nil, err
	}
	bells, err := findBells(w.shared, function)
	if err != nil {
		return nil, err
	}
	if w.regs, err = mapResource(filepath.Join(dir, "resource0"), registers); err != nil {
		return nil, err
	}
	w.ring = ring.NewProducer(ring.Mem(bells), ring.QueueLayout(abi.WindowBellsLog2, 4))
	return w, nil
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

// findBells follows the chain of capabilities to the bell ring.
func findBells(m []byte, function uint32) ([]byte, error) {
	var h abi.WindowHeader
	h.Unmarshal(m)
	switch {
	case h.Magic != abi.Magic || h.Function != function:
		return nil, ErrNone
	case h.Major != abi.VersionMajor:
		return nil, fmt.Errorf("it has ABI version %d, this driver %d", h.Major, abi.VersionMajor)
	case uint64(h.Length) > uint64(len(m)):
		return nil, fmt.Errorf("it says it has %d bytes, and has %d", h.Length, len(m))
	}
	m = m[:h.Length]
	want := ring.QueueLayout(abi.WindowBellsLog2, 4).Size()
	at := uint64(h.FirstCap)
	for range maxCaps {
		if at == 0 {
			return nil, errors.New("it has no bell ring of a version known here")
		}
		if at+abi.CapabilitySize > uint64(len(m)) {
			return nil, fmt.Errorf("a capability at %#x passes its end", at)
		}
		var c abi.Capability
		c.Unmarshal(m[at:])
		if c.Type == abi.CapBells && c.Version == 1 {
			if c.Offset%64 != 0 || uint64(c.Length) < want || uint64(c.Offset)+uint64(c.Length) > uint64(len(m)) {
				return nil, fmt.Errorf("a bell ring of %d bytes at %#x does not fit", c.Length, c.Offset)
			}
			return m[c.Offset:][:want], nil
		}
		if c.Next != 0 && uint64(c.Next) <= at {
			break
		}
		at = uint64(c.Next)
	}
	return nil, errors.New("its chain of capabilities does not end")
}

// Ring hands a doorbell to the device, or returns ring.ErrFull.
func (w *Window) Ring(d *abi.Doorbell) error {
	d.Marshal(w.record[:])
	if err := w.ring.Push(w.record[:]); err != nil {
		return err
	}
	_, needBell, err := w.ring.Publish()
	if needBell {
		store32(w.regs, abi.WindowDoorbell, 0)
	}
	return err
}

// Close unmaps the window.
func (w *Window) Close() {
	for _, m := range [][]byte{w.shared, w.regs} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	w.shared, w.regs = nil, nil
}

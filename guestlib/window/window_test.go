package window

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

const testFunction = 0x010001

// pci is a folder in the form of sysfs. Its devices are plain files, which can be mapped like the
// real ones.
type pci struct {
	t   *testing.T
	dir string
}

func newPCI(t *testing.T) pci { return pci{t, t.TempDir()} }

func (p pci) add(name, vendor, device string, shared []byte) string {
	p.t.Helper()
	dir := filepath.Join(p.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	for file, b := range map[string][]byte{
		"vendor": []byte(vendor + "\n"), "device": []byte(device + "\n"), "enable": []byte("0\n"), "resource0": make([]byte, 4096), "resource2": shared,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	return dir
}

const testBells = 8192

// image returns a valid window: an unknown capability, then that of the bell ring.
func image(function uint32) []byte {
	b := make([]byte, abi.WindowSize)
	(&abi.WindowHeader{Magic: abi.Magic, Major: abi.VersionMajor, Minor: 99, Length: abi.WindowSize, Function: function, FirstCap: 128}).Marshal(b)
	(&abi.Capability{Type: 999, Version: 1, Offset: 512, Length: 64, Next: 256}).Marshal(b[128:])
	(&abi.Capability{Type: abi.CapBells, Version: 1, Offset: testBells, Length: uint32(ring.QueueLayout(abi.WindowBellsLog2, 4).Size())}).Marshal(b[256:])
	return b
}

func TestTheWindowCarriesDoorbellsInOrder(t *testing.T) {
	p := newPCI(t)
	p.add("0000:00:01.0", "0x8086", "0x1110", image(testFunction))
	p.add("0000:00:08.0", "0x1af4", "0x1110", image(testFunction+1))
	p.add("0000:00:08.1", "0x1af4", "0x1110", make([]byte, 16)) // somebody else's
	dir := p.add("0000:00:08.2", "0x1af4", "0x1110", image(testFunction))
	w, err := OpenIn(p.dir, testFunction)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if text(dir, "enable") != "1" {
		t.Error("the device was not enabled")
	}
	register := func() uint32 {
		b, err := os.ReadFile(filepath.Join(dir, "resource0"))
		if err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint32(b[abi.WindowDoorbell:])
	}
	f, err := os.OpenFile(filepath.Join(dir, "resource2"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	consumer := ring.NewConsumer(ring.Mem(m[testBells:]), ring.QueueLayout(abi.WindowBellsLog2, 4))

	// A doorbell would replace this value.
	store32(w.regs, abi.WindowDoorbell, 0xdead)
	for i := range uint32(1 << abi.WindowBellsLog2) {
		if err := w.Ring(&abi.Doorbell{Kind: abi.DoorbellRQ, Queue: 5, Index: i}); err != nil {
			t.Fatal(err)
		}
		if got := register(); got != 0 {
			t.Fatalf("record %d: the register holds %#x", i, got)
		}
		if i == 0 { // from here on the device looks by itself
			if n, err := consumer.Poll(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	if err := w.Ring(&abi.Doorbell{}); !errors.Is(err, ring.ErrFull) {
		t.Fatalf("full: %v", err)
	}
	if n, err := consumer.Poll(); n != 1<<abi.WindowBellsLog2 || err != nil {
		t.Fatal(n, err)
	}
	for i := range uint32(1 << abi.WindowBellsLog2) {
		var b [abi.DoorbellSize]byte
		if err := consumer.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		consumer.Take()
		var d abi.Doorbell
		d.Unmarshal(b[:])
		if want := (abi.Doorbell{Kind: abi.DoorbellRQ, Queue: 5, Index: i}); d != want {
			t.Fatalf("%+v, want %+v", d, want)
		}
	}
	if err := consumer.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := w.Ring(&abi.Doorbell{}); err != nil {
		t.Fatal(err)
	}

	// An impossible consumer index.
	binary.LittleEndian.PutUint32(m[testBells+64:], 1<<30)
	for err = nil; err == nil; {
		err = w.Ring(&abi.Doorbell{})
	}
	if !errors.Is(err, ring.ErrIndex) {
		t.Errorf("%v", err)
	}
	n := allocs.PerRun(100, func() { _ = w.Ring(&abi.Doorbell{}) })
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAFunctionWithoutAWindowIsReported(t *testing.T) {
	p := newPCI(t)
	if _, err := OpenIn(p.dir, testFunction); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
	p.add("0000:00:08.0", "0x1af4", "0x1110", image(1))
	if _, err := OpenIn(p.dir, testFunction); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
	if _, err := OpenIn(filepath.Join(p.dir, "absent"), testFunction); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestABrokenWindowIsRefused: whatever a window holds, Open neither panics nor reads outside of it.
func TestABrokenWindowIsRefused(t *testing.T) {
	le := binary.LittleEndian
	for want, spoil := range map[string]func(b []byte){
		"ABI version":         func(b []byte) { le.PutUint16(b[4:], abi.VersionMajor+1) },
		"says it has":         func(b []byte) { le.PutUint32(b[8:], 1<<31) },
		"no bell ring":        func(b []byte) { le.PutUint16(b[256+2:], 2) },
		"no bell":             func(b []byte) { le.PutUint32(b[20:], 0) },
		"passes its end":      func(b []byte) { le.PutUint32(b[128+12:], abi.WindowSize-8) },
		"does not end":        func(b []byte) { le.PutUint32(b[128+12:], 128) },
		"does not fit":        func(b []byte) { le.PutUint32(b[256+4:], abi.WindowSize-64) },
		"not fit":             func(b []byte) { le.PutUint32(b[256+4:], 0xffffffc0) },
		"bells with 64 bytes": func(b []byte) { le.PutUint32(b[256+8:], 64) },
	} {
		p := newPCI(t)
		b := image(testFunction)
		spoil(b)
		p.add("0000:00:08.0", "0x1af4", "0x1110", b)
		if _, err := OpenIn(p.dir, testFunction); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzFindBells(f *testing.F) {
	f.Add(image(testFunction)[:2*4096])
	f.Add(image(testFunction))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < abi.WindowHeaderSize {
			return
		}
		found, err := findBlocks(b, testFunction)
		for _, e := range found.events {
			if m := e.of(b); uint64(len(m)) != ring.QueueLayout(abi.WindowEventsLog2, 3).Size() {
				t.Fatalf("an event queue of %d bytes", len(m))
			}
		}
		if m := found.bells.of(b); err == nil && uint64(len(m)) != ring.QueueLayout(abi.WindowBellsLog2, 4).Size() {
			t.Fatalf("%d bytes", len(m))
		}
	})
}

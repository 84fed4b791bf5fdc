package qemu

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestRegionsOfClients: a region of a bare client's is made of whole pages;
// it has a place in addresses and in its file, and none in another region.
func TestRegionsOfClients(t *testing.T) {
	before := []clientRegion{{0x10000, 0x10000, 0}, {0x40000, 0x1000, 0}}
	for _, tt := range []struct {
		r    clientRegion
		says string // "": it is taken
	}{
		{clientRegion{0, 0x1000, 0}, ""},
		{clientRegion{0, 0, 0}, "has no bytes"},
		{clientRegion{0x800, 0x1000, 0}, "whole 4096-byte pages"},
		{clientRegion{0, 0x1800, 0}, "whole 4096-byte pages"},
		{clientRegion{0, 0x1000, 0x800}, "whole 4096-byte pages"},
		{clientRegion{0, 0x10000, 0}, ""},
		{clientRegion{0, 0x11000, 0}, "overlap"},
		{clientRegion{0x1f000, 0x1000, 0}, "overlap"},
		{clientRegion{0x1f000, 0x2000, 0}, "overlap"},
		{clientRegion{0x20000, 0x20000, 0}, ""},
		{clientRegion{0x20000, 0x21000, 0}, "overlap"},
		{clientRegion{0, 0x100000, 0}, "overlap"},
		{clientRegion{0x12000, 0x1000, 0}, "overlap"},
		{clientRegion{1<<64 - 0x2000, 0x1000, 0}, ""},
		{clientRegion{1<<64 - 0x1000, 0x1000, 0}, "wraps"}, // the last page has no end
		{clientRegion{1<<64 - 0x1000, 0x2000, 0}, "wraps"},
		{clientRegion{0, 0x1000, 1<<63 - 0x2000}, ""},
		{clientRegion{0, 0x1000, 1<<63 - 0x1000}, "wraps"},
		{clientRegion{0, 0x1000, 1<<64 - 0x1000}, "wraps"},
		{clientRegion{0, 0x2000, 1<<64 - 0x1000}, "wraps"},
	} {
		checkSays(t, fmt.Sprintf("%#x", tt.r), tt.r.check(before), tt.says)
	}
}

// TestManyClientRegions: a client may pass so many regions, and each up to the end of its file.
func TestManyClientRegions(t *testing.T) {
	_, path := listenUnix(t)
	fd := memfd(t, 0x2000, unix.F_SEAL_SHRINK)
	var rs []clientRegion
	var fds []int
	for i := range uint64(maxClientRegions) {
		rs, fds = append(rs, clientRegion{i << 20, 0x1000, 0x1000}), append(fds, fd)
	}
	if _, status, reason := attachClient(t, path, preambleOf(maxClientRegions, rs...), fds...); status != 0 {
		t.Errorf("%d regions: status %d, %s", len(rs), status, reason)
	}
	if _, status, reason := attachClient(t, path, preambleOf(maxClientRegions+1)); status == 0 || !strings.Contains(reason, "the limit is 64") {
		t.Errorf("one region more: status %d, %s", status, reason)
	}
}

// TestPathsOfSockets: a path is as long as the kernel takes it, whether it is listened at or
// called.
func TestPathsOfSockets(t *testing.T) {
	dir := t.TempDir()
	for n, ok := range map[int]bool{maxSocketPath - 1: true, maxSocketPath: true, maxSocketPath + 1: false} {
		path := filepath.Join(dir, strings.Repeat("x", max(1, n-len(dir)-1)))
		if len(path) != n {
			t.Skip("the folder for tests has too long a name")
		}
		l, err := ListenNet(path)
		if (err == nil) != ok {
			t.Errorf("a path of %d bytes: %v", n, err)
		}
		if err == nil {
			_ = l.Close()
		}
		c, err := CallNet(path)
		if (err == nil) != ok {
			t.Errorf("a path of %d bytes is called: %v", n, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	for _, open := range []func(string) (Acceptor, error){ListenNet, CallNet} {
		if _, err := open(""); err == nil {
			t.Error("an empty path is taken")
		}
	}
}

// TestContextIDs: a guest has a context ID that is not reserved (Virtio §5.10.4).
func TestContextIDs(t *testing.T) {
	for cid, ok := range map[uint32]bool{0: false, 1: false, 2: false, 3: true, math.MaxUint32 - 1: true, math.MaxUint32: false} {
		if err := checkCID("path", cid); (err == nil) != ok {
			t.Errorf("%d: %v", cid, err)
		}
	}
}

// TestMostWindows: a guest has as many windows as its bus has room for.
func TestMostWindows(t *testing.T) {
	v, _ := startBackend(t)
	v.mu.Lock()
	v.windows = map[uint32]*guestWindow{}
	for i := range uint32(MaxWindows - 1) {
		v.windows[1000+i] = &guestWindow{} // without memory
	}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for i := range uint32(MaxWindows - 1) {
			delete(v.windows, 1000+i)
		}
	}()
	if err := v.AddWindow(1, abi.FunctionVF, v.Path()+".1"); err != nil || !v.HasWindow(1) {
		t.Errorf("the last one: %v", err)
	}
	if err := v.AddWindow(2, abi.FunctionVF, v.Path()+".2"); err == nil || !strings.Contains(err.Error(), "room for no more") || v.HasWindow(2) {
		t.Errorf("one more: %v", err)
	}
}

// backed is a vfioBack that records its calls.
type backed struct{ log []string }

func (b *backed) note(format string, a ...any) error {
	b.log = append(b.log, fmt.Sprintf(format, a...))
	return nil
}

func (b *backed) Map(m vfiouser.Map, _ int) error       { return b.note("map %s", m.Range) }
func (b *backed) Unmap(r vfiouser.Range)                { _ = b.note("unmap %s", r) }
func (b *backed) SetIRQs(start uint32, fds []int) error { return b.note("irqs %d: %d", start, fds) }
func (b *backed) Trigger(vector uint32)                 { _ = b.note("trigger %d", vector) }
func (b *backed) Reset()                                { _ = b.note("reset") }

// TestFunctionOnTheBus: what a client sees of a function: its regions, how it interrupts, and which
// accesses do something.
func TestFunctionOnTheBus(t *testing.T) {
	for _, msi := range []bool{false, true} {
		win, err := ivshmem.NewWindow(vfioTestFunction, abi.FunctionVF)
		if err != nil {
			t.Fatal(err)
		}
		look := vfioTestLook
		look.MSI = msi
		back := &backed{}
		f, err := newVfioFunction(vfioTestFunction, win, look, back)
		if err != nil {
			t.Fatal(err)
		}
		const both = vfiouser.RegionReadable | vfiouser.RegionWritable
		for index, want := range map[uint32]vfiouser.RegionInfo{
			vfioRegisters: {Flags: both, Size: vfioRegistersSize}, vfioTables: {Flags: both, Size: 4096},
			vfioWindow: {Flags: both | vfiouser.RegionMappable, Size: abi.WindowSize}, vfiouser.RegionConfig: {Flags: both, Size: 4096},
			3: {}, vfiouser.RegionROM: {}, vfiouser.RegionVGA: {},
		} {
			if msi && index == vfioTables {
				want = vfiouser.RegionInfo{}
			}
			r, file := f.Region(index)
			if r != want || (file == win.File()) != (index == vfioWindow) || file != win.File() && file != vfiouser.NoFile {
				t.Errorf("MSI %t, region %d: %+v, file %d", msi, index, r, file)
			}
		}
		for irq, want := range map[uint32]bool{vfiouser.IRQINTx: false, vfiouser.IRQMSI: msi, vfiouser.IRQMSIX: !msi} {
			if n := f.Vectors(irq); n != 0 && n != ivshmem.Vectors || (n != 0) != want {
				t.Errorf("MSI %t: %d vectors of kind %d", msi, n, irq)
			}
		}
		if n := (vfioBehind{}).Vectors(vfiouser.IRQMSIX); n != ivshmem.Vectors || (vfioBehind{}).Vectors(vfiouser.IRQMSI) != 0 {
			t.Errorf("%d vectors behind", n)
		}
		f.Write(vfioWindow, 0x1000, []byte{1, 2, 3})
		f.Write(vfioTables, 0x10, []byte{1, 2, 3, 4})
		for _, r := range []struct {
			region uint32
			off    uint64
			want   [4]byte
		}{
			{vfioWindow, 0x1000, [4]byte{1, 2, 3, 0}},
			{vfioTables, 0x10, [4]byte{}},
			{vfioRegisters, 0, [4]byte{}},
			{vfiouser.RegionConfig, 0, [4]byte{0xf4, 0x1a, 0xf0, 0x10}},
		} {
			b := [4]byte{9, 9, 9, 9}
			if f.Read(r.region, r.off, b[:]); b != r.want {
				t.Errorf("region %d at %#x: % x, want % x", r.region, r.off, b, r.want)
			}
		}
		f.Write(vfiouser.RegionConfig, 4, []byte{6, 0})
		f.Write(vfiouser.RegionConfig, 0x48+1, []byte{0x80}) // device control, bit 15
		var command [2]byte
		if f.Read(vfiouser.RegionConfig, 4, command[:]); command != [2]byte{} {
			t.Errorf("command register after a reset: % x", command)
		}
		if len(back.log) != 1 || back.log[0] != "reset" {
			t.Errorf("told %q", back.log)
		}
		if err := win.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFilesOfARange: a range of DMA addresses may have all of its file, and none behind its end; a
// file is kept as long as a range has it, and is mapped once for writing and once for reading.
func TestFilesOfARange(t *testing.T) {
	const size = 0x4000
	fd := memfd(t, size, unix.F_SEAL_SHRINK)
	budget := guestmem.NewBudget("test", guestmem.Attachment)
	d := dmaMap{budget: budget}
	add := func(addr, offset, n uint64, flags uint32) (*dmaRange, error) {
		t.Helper()
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return d.add(vfiouser.Map{Flags: flags, Offset: offset, Range: vfiouser.Range{Addr: addr, Size: n}}, own)
	}
	for _, past := range [][2]uint64{{0, size + 1}, {size, 1}, {0x1000, size}} {
		if _, err := add(0, past[0], past[1], vfiouser.MapRead); err == nil || len(d.files) != 0 || len(d.ranges) != 0 {
			t.Errorf("%d bytes at %d of a file of %d: %v, %d files", past[1], past[0], size, err, len(d.files))
		}
	}
	var regions []queues.Region
	for i, flags := range []uint32{
		vfiouser.MapRead | vfiouser.MapWrite, vfiouser.MapRead,
		vfiouser.MapRead | vfiouser.MapWrite, vfiouser.MapRead,
	} {
		r, err := add(uint64(3-i)<<20, uint64(i)*0x1000, size-uint64(i)*0x1000, flags)
		if err != nil {
			t.Fatal(err)
		}
		region, err := d.region(r)
		if err != nil || region.Addr != r.Addr || len(region.Mem) != int(r.Size) {
			t.Fatalf("%+v, %v", region.Addr, err)
		}
		regions = append(regions, region)
	}
	regions[0].Mem[0x3000] = 42
	if regions[1].Mem[0x2000] != 42 || regions[2].Mem[0x1000] != 42 || regions[3].Mem[0] != 42 || &regions[0].Mem[0x2000] != &regions[2].Mem[0] || &regions[1].Mem[0x2000] != &regions[3].Mem[0] {
		t.Error("the file is not mapped as a whole")
	}
	if u := budget.Usage(); u.Maps != 2 || u.Bytes != 2*size {
		t.Errorf("%+v is mapped, want the file once for writing and once for reading", u)
	}
	if len(d.files) != 1 || d.files[0].refs != 4 {
		t.Errorf("%d files", len(d.files))
	}
	for i := 1; i < len(d.ranges); i++ {
		if d.ranges[i-1].Addr >= d.ranges[i].Addr {
			t.Error("ranges are not in order")
		}
	}
	if r, err := d.add(vfiouser.Map{Range: vfiouser.Range{Addr: 1 << 30, Size: 1 << 40}}, vfiouser.NoFile); err != nil || r.file != nil {
		t.Errorf("a range without a file: %v", err)
	}
	own := d.files[0].fd
	for left := 4; left > 0; left-- {
		if gone := d.remove(vfiouser.Range{Addr: uint64(left-1) << 20, Size: 1 << 20}); len(gone) != 1 {
			t.Fatalf("%d ranges went for one", len(gone))
		} else {
			d.release(gone...)
		}
		if open := len(d.files) == 1; open != (left > 1) {
			t.Errorf("%d ranges are left, and %d files", left-1, len(d.files))
		}
	}
	if _, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the file is open: %v", err)
	}
	if u := budget.Usage(); u.Maps != 0 || u.Bytes != 0 {
		t.Errorf("%+v is still mapped", u)
	}
}

// TestEventfdsAreChecked: if one descriptor is not an eventfd, all are closed and refused.
func TestEventfdsAreChecked(t *testing.T) {
	open := func(fd int) bool {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil
	}
	own := func(fd int) int {
		t.Helper()
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return own
	}
	good := []int{own(newEventFD(t)), -1, own(newEventFD(t))}
	if err := checkEventfds(good); err != nil || !open(good[0]) || !open(good[2]) {
		t.Errorf("eventfds: %v", err)
	}
	bad := append(good, own(memfd(t, 1, 0)))
	if err := checkEventfds(bad); err == nil || open(bad[0]) || open(bad[2]) || open(bad[3]) {
		t.Errorf("a file among them: %v", err)
	}
	if err := checkEventfds([]int{-1, -1}); err != nil {
		t.Errorf("none: %v", err)
	}
}

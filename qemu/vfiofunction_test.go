package qemu

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// backed is a vfioBack that records its calls.
type backed struct{ log []string }

func (b *backed) note(format string, a ...any) error {
	b.log = append(b.log, fmt.Sprintf(format, a...))
	return nil
}

func (b *backed) Map(m vfiouser.Map, _ int) error          { return b.note("map %s", m.Range) }
func (b *backed) Unmap(r vfiouser.Range)                   { _ = b.note("unmap %s", r) }
func (b *backed) SetIRQs(_, start uint32, fds []int) error { return b.note("irqs %d: %d", start, fds) }
func (b *backed) Trigger(_, vector uint32)                 { _ = b.note("trigger %d", vector) }
func (b *backed) Reset()                                   { _ = b.note("reset") }

// TestRegionsAndInterruptsOfAFunction: a function shows a client its regions and interrupts. What
// is written to the window can be read back; the MSI-X tables and the doorbell register read as
// zero.
func TestRegionsAndInterruptsOfAFunction(t *testing.T) {
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
		if n := (&vfioGuest{}).Vectors(vfiouser.IRQMSIX); n != ivshmem.Vectors || (&vfioGuest{}).Vectors(vfiouser.IRQMSI) != 0 {
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

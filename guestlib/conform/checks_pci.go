package conform

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// pciChecks check the function as a PCI device: the clauses of section 11. They are skipped if the
// function is reached in another way.
var pciChecks = []check{
	{"pci.config", "DEV-1106", 0, pciConfig},
	{"pci.bars", "DEV-1106", 0, pciBARs},
	{"pci.bar0", "DEV-1101", 0, pciBAR0},
	{"pci.vectors", "DEV-1102", 0, pciVectors},
	{"pci.translation", "DEV-1103", 0, pciTranslation},
	{"pci.reset", "DEV-1104", 0, pciReset},
}

// Offsets and bits of PCI's configuration space.
const (
	pciClass      = 0x09
	pciHeaderType = 0x0e
	pciCapability = 0x34
	pciPin        = 0x3d
	pciSerial     = 0x100

	capMSI, capExpress, capMSIX, extSerial = 0x05, 0x10, 0x11, 0x0003
	expressReset                           = 1 << 28
)

// capabilities returns the offsets of the device's capabilities by number.
func (d *pciDevice) capabilities(t *T) map[byte]int {
	space, err := d.Config(0, 256)
	t.noError(err)
	at := map[byte]int{}
	for next, n := int(space[pciCapability]), 0; next >= 0x40 && next < 0xff && n < 48; n++ {
		at[space[next]] = next
		next = int(space[next+1])
	}
	return at
}

func pciConfig(t *T) {
	c := t.attach()
	d := t.pci()
	head, err := d.Config(0, 64)
	t.noError(err)
	if class := uint32(head[pciClass]) | uint32(head[pciClass+1])<<8 | uint32(head[pciClass+2])<<16; class != 0x020000 || head[pciHeaderType]&0x7f != 0 || head[pciPin] != 0 {
		t.Fatalf("class %#06x, header type %#x, interrupt pin %d; want 0x020000, 0 and 0", class, head[pciHeaderType], head[pciPin])
	}
	caps := d.capabilities(t)
	express, ok := caps[capExpress]
	if !ok {
		t.Fatalf("there is no PCI Express capability")
	}
	devcap, err := d.Config(express+4, 4)
	t.noError(err)
	if binary.LittleEndian.Uint32(devcap)&expressReset == 0 {
		t.Fatalf("device capabilities %#x: no function level reset", binary.LittleEndian.Uint32(devcap))
	}
	if _, msix := caps[capMSIX]; !msix {
		if _, msi := caps[capMSI]; !msi {
			t.Fatalf("there is neither MSI-X nor MSI")
		}
	}
	serial, err := d.Config(pciSerial, 12)
	t.noError(err)
	if id, n := binary.LittleEndian.Uint16(serial), binary.LittleEndian.Uint64(serial[4:]); id != extSerial || n != uint64(c.number) {
		t.Fatalf("extended capability %#x with serial number %#x, want %#x and the function's number %#x", id, n, extSerial, c.number)
	}
	t.noError(d.SetConfig(0, []byte{0xff, 0xff, 0xff, 0xff}))
	t.noError(d.SetConfig(pciClass, []byte{0xff}))
	again, err := d.Config(0, 16)
	t.noError(err)
	if string(again[:4]) != string(head[:4]) || again[pciClass] != head[pciClass] {
		t.Fatalf("ids or class can be written: % x, were % x", again, head[:16])
	}
	c.register(abi.RegState)
}

func pciBARs(t *T) {
	t.attach()
	d := t.pci()
	_, msix := d.capabilities(t)[capMSIX]
	text, err := os.ReadFile(filepath.Join(d.Folder(), "resource"))
	t.noError(err)
	tables := uint64(0)
	if msix {
		tables = 4096
	}
	for i, line := range strings.Split(string(text), "\n")[:7] {
		var first, last, flags uint64
		if _, err := fmt.Sscanf(line, "0x%x 0x%x 0x%x", &first, &last, &flags); err != nil {
			t.Fatalf("resource %d: %q", i, line)
		}
		size, want := uint64(0), [7]uint64{8192, tables, abi.WindowSize}[i]
		if first != 0 {
			size = last - first + 1
		}
		if size != want {
			t.Fatalf("resource %d has %d bytes, want %d", i, size, want)
		}
		if prefetch := flags&0x2000 != 0; size > 0 && prefetch != (i == 2) {
			t.Fatalf("BAR%d: prefetchable is %t, want %t", i, prefetch, i == 2)
		}
	}
}

// pciBAR0 does loads from BAR0 and stores that it does not define; they must not disturb the
// session.
func pciBAR0(t *T) {
	c := t.ready()
	d := t.pci()
	for off := 0; off < 256; off += 4 {
		if v := d.Load32(off); v != 0 {
			t.Fatalf("BAR0 holds %#x at %#x, want 0", v, off)
		}
	}
	d.Store8(abi.WindowDoorbell, 1)
	for off := 0; off < 256; off += 4 {
		if off != abi.WindowDoorbell {
			d.Store32(off, abi.WindowDoorbellControl)
		}
	}
	for _, v := range []uint32{2, 0x80, 0xffff_ffff} {
		d.Store32(abi.WindowDoorbell, v)
	}
	if s := c.state(); s != abi.StateReady {
		t.Fatalf("stores without a meaning took the function to %s", s)
	}
}

// pciVectors checks that vectors are raised once when they are enabled, because earlier events
// could be lost.
func pciVectors(t *T) {
	t.attach()
	d := t.pci()
	if d.Vectors() < 2 {
		t.Skipf("%d interrupt vectors here", d.Vectors())
	}
	for i := 1; i < d.Vectors(); i++ {
		if !d.Raised(i, t.cfg.Wait) {
			t.Fatalf("vector %d was not raised when it was enabled", i)
		}
	}
}

// pciTranslation checks that the device cannot access a page that the IOMMU no longer maps, but can
// still access others.
func pciTranslation(t *T) {
	r := t.qpPair()
	d := t.pci()
	if !d.Translated() {
		t.Skipf("no IOMMU translates the device's addresses here")
	}
	const size = 2 << 20 // one of the IOMMU's pages, however it maps
	mem, addr := make([]byte, 2*size), uint64(1)<<40
	at := (size - int(d.AddressOf(mem)%size)) % size
	t.noError(d.MapDMA(mem[at:at+size], addr))
	list := r.alloc(abi.PageSize)
	binary.LittleEndian.PutUint64(list.Bytes(), addr)
	reg := abi.RegMR{PDN: r.pdn, Access: allAccess, IOVA: addr, Length: abi.PageSize, Pages: list.Pages()[0], Levels: 1}
	var mr abi.RegMRResult
	r.must(abi.AdminOpRegMR, &reg, &mr)
	write := func(id uint64) {
		r.a.post(abi.SendWQE{WRID: id, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: mr.RKey}, r.mr.sge(0, 8))
	}
	copy(r.mr.bytes(), "reached!")
	write(1)
	r.cq.want(1, abi.WCSuccess)
	if string(mem[at:at+8]) != "reached!" {
		t.Fatalf("a WRITE to mapped memory left % x there", mem[at:at+8])
	}
	t.noError(d.UnmapDMA(addr, size))
	r.refuse(abi.AdminOpRegMR, &reg, abi.StatusMemoryFault)
	write(2)
	if e := r.cq.next(); e.Status == abi.WCSuccess {
		t.Fatalf("a WRITE to memory that the IOMMU does not map any more succeeds")
	}
}

// pciReset checks that a reset ends the session, and that the next session finds a fresh function.
func pciReset(t *T) {
	c := t.ready()
	d := t.pci()
	c.byAdmin()
	t.noError(d.Reset())
	c.stream.closed()
	n := t.attach()
	if s := n.state(); s != abi.StateReset {
		t.Fatalf("after a reset the function is in %s", s)
	}
	n.enable()
	n.byAdmin()
}

// byAdmin checks that commands are executed.
func (c *client) byAdmin() { c.must(abi.AdminOpAllocPD, nil, &abi.AllocPDResult{}) }

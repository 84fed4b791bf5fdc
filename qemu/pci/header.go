package pci

// Offsets of the header, PCI 3.0 §6.1.
const (
	offVendor    = 0x00
	offDevice    = 0x02
	offCommand   = 0x04
	offStatus    = 0x06
	offRevision  = 0x08
	offClass     = 0x09
	offCacheLine = 0x0c
	offBAR0      = 0x10
	offSubVendor = 0x2c
	offSubDevice = 0x2e
	offCaps      = 0x34
	offIRQLine   = 0x3c

	commandBits  = 0x0547 // memory, bus master, parity, SERR, INTx disable, I/O
	statusCaps   = 0x0010
	classNetwork = 0x020000 // Ethernet controller
	barMem64     = 4
	barPrefetch  = 8
)

// header writes the first 64 bytes.
func (r *registers) header(f *Function) {
	r.put16(offVendor, f.IDs.Vendor)
	r.put16(offDevice, f.IDs.Device)
	r.put16(offSubVendor, f.IDs.SubVendor)
	r.put16(offSubDevice, f.IDs.SubDevice)
	r.b[offRevision] = f.IDs.Revision
	r.b[offClass], r.b[offClass+1], r.b[offClass+2] = classNetwork&0xff, classNetwork>>8&0xff, classNetwork>>16
	r.put16(offStatus, statusCaps)
	r.free16(offCommand, commandBits)
	r.mask[offCacheLine] = 0xff
	r.mask[offIRQLine] = 0xff
	for i, b := range f.BARs {
		r.bar(offBAR0+4*i, b)
	}
}

func (r *registers) bar(off int, b BAR) {
	if b.Size == 0 {
		return
	}
	var kind uint32
	if b.Prefetch {
		kind |= barPrefetch
	}
	address := ^(b.Size - 1)
	r.free32(off, uint32(address))
	if b.Wide {
		kind |= barMem64
		r.free32(off+4, uint32(address>>32))
	}
	r.put32(off, kind)
}

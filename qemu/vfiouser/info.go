package vfiouser

import "encoding/binary"

const (
	infoSize    = 16
	regionSize  = 32
	irqInfoSize = 16
)

// Flags of an Info.
const (
	InfoReset uint32 = 1 << 0 // the device supports DEVICE_RESET
	InfoPCI   uint32 = 1 << 1
)

// Info is the body of the reply to DEVICE_GET_INFO; the request has the same form.
type Info struct{ Flags, Regions, IRQs uint32 }

// Append appends the message's body.
func (i *Info) Append(b []byte) []byte {
	for _, v := range [4]uint32{infoSize, i.Flags, i.Regions, i.IRQs} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseInfo parses the body of DEVICE_GET_INFO. argsz is the largest length of the reply's body.
func ParseInfo(b []byte) (i Info, argsz uint32, err error) {
	if len(b) < infoSize {
		return i, 0, short("DEVICE_GET_INFO", b, infoSize)
	}
	le := binary.LittleEndian
	return Info{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, le.Uint32(b), nil
}

// Regions of a PCI device, linux/vfio.h.
const (
	RegionBAR0   = 0 // to 5
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	NumRegions   = 9
)

// Flags of a RegionInfo.
const (
	RegionReadable uint32 = 1 << 0
	RegionWritable uint32 = 1 << 1
	RegionMappable uint32 = 1 << 2 // the file comes with the reply
)

// RegionInfo is the body of the reply to DEVICE_GET_REGION_INFO; the request has the same form.
// Size is 0 if the region does not exist.
type RegionInfo struct {
	Flags, Index uint32
	Size, Offset uint64 // in bytes; Offset is the region's offset in the file
}

// Append appends the message's body.
func (r *RegionInfo) Append(b []byte) []byte {
	for _, v := range [4]uint32{regionSize, r.Flags, r.Index, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, r.Size)
	return binary.LittleEndian.AppendUint64(b, r.Offset)
}

// ParseRegionInfo parses the body of DEVICE_GET_REGION_INFO. argsz is the largest length of the
// reply's body.
func ParseRegionInfo(b []byte) (r RegionInfo, argsz uint32, err error) {
	if len(b) < regionSize {
		return r, 0, short("DEVICE_GET_REGION_INFO", b, regionSize)
	}
	le := binary.LittleEndian
	return RegionInfo{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])}, le.Uint32(b), nil
}

// Kinds of interrupts of a PCI device, linux/vfio.h. The kinds that report errors of a device and
// ask for its release (VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX) are left out: QEMU warns
// about kinds without a vector.
const (
	IRQINTx = 0
	IRQMSI  = 1
	IRQMSIX = 2
	NumIRQs = 3
)

// IRQEventfd is the flag of an IRQInfo whose interrupts are signalled by eventfds.
const IRQEventfd uint32 = 1 << 0

// irqNoResize is VFIO_IRQ_INFO_NORESIZE: the vectors are enabled as one set.
const irqNoResize uint32 = 1 << 3

// IRQInfo is the body of the reply to DEVICE_GET_IRQ_INFO; the request has the same form.
type IRQInfo struct{ Flags, Index, Count uint32 }

// Append appends the message's body.
func (i *IRQInfo) Append(b []byte) []byte {
	for _, v := range [4]uint32{irqInfoSize, i.Flags, i.Index, i.Count} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseIRQInfo parses the body of DEVICE_GET_IRQ_INFO. argsz is the largest length of the reply's
// body.
func ParseIRQInfo(b []byte) (i IRQInfo, argsz uint32, err error) {
	if len(b) < irqInfoSize {
		return i, 0, short("DEVICE_GET_IRQ_INFO", b, irqInfoSize)
	}
	le := binary.LittleEndian
	return IRQInfo{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, le.Uint32(b), nil
}

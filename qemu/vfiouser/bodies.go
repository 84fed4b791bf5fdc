package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
)

// Protocol version, vfio-user "VFIO_USER_VERSION". QEMU proposes 0.0 and refuses a larger minor.
const (
	versionMajor = 0
	versionMinor = 0
	versionSize  = 4
)

// Capabilities are the capabilities of one side. A missing key means the protocol's default.
type Capabilities struct {
	MaxFDs      int    `json:"max_msg_fds,omitempty"`        // descriptors accepted in one message
	MaxTransfer int    `json:"max_data_xfer_size,omitempty"` // bytes of a region in one message
	MaxMaps     int    `json:"max_dma_maps,omitempty"`       // mappings at the same time
	PageSizes   uint64 `json:"pgsizes,omitempty"`            // page sizes for DMA_MAP, or'ed together
}

// Greeting is the first message of each side.
type Greeting struct {
	Major, Minor uint16
	Capabilities Capabilities
}

type versionData struct {
	Capabilities Capabilities `json:"capabilities"`
}

// Append appends the message's body: the version, then JSON that ends with a zero byte.
func (g *Greeting) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, g.Major)
	b = binary.LittleEndian.AppendUint16(b, g.Minor)
	data, _ := json.Marshal(versionData{g.Capabilities}) // numbers always encode
	return append(append(b, data...), 0)
}

// ParseGreeting parses the body of a VERSION message. It ignores capabilities that it does not
// know.
func ParseGreeting(b []byte) (g Greeting, err error) {
	if len(b) < versionSize {
		return g, short("VERSION", b, versionSize)
	}
	g.Major, g.Minor = binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
	data := b[versionSize:]
	if len(data) == 0 {
		return g, nil
	}
	if data[len(data)-1] != 0 {
		return g, fmt.Errorf("vfio-user VERSION: the capabilities do not end with a zero byte")
	}
	var v versionData
	if err := json.Unmarshal(bytes.TrimRight(data, "\x00"), &v); err != nil {
		return g, fmt.Errorf("vfio-user VERSION: capabilities: %w", err)
	}
	g.Capabilities = v.Capabilities
	return g, nil
}

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

const accessSize = 16

// Access is the body of REGION_READ and REGION_WRITE, and of their replies. In a write and in the
// reply to a read, Count bytes of data follow it.
type Access struct {
	Offset        uint64 // bytes into the region
	Region, Count uint32
}

// Append appends the message's body without the data.
func (a *Access) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Offset)
	b = binary.LittleEndian.AppendUint32(b, a.Region)
	return binary.LittleEndian.AppendUint32(b, a.Count)
}

// ParseAccess parses the body of REGION_READ or REGION_WRITE and returns the data that follows it.
func ParseAccess(b []byte) (a Access, data []byte, err error) {
	if len(b) < accessSize {
		return a, nil, short("region access", b, accessSize)
	}
	le := binary.LittleEndian
	a = Access{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
	if a.Count > MaxTransfer {
		return a, nil, fmt.Errorf("vfio-user region access: %d bytes at once, the limit is %d", a.Count, MaxTransfer)
	}
	return a, b[accessSize:], nil
}

// Flags of an IRQSet: the kind of data, and the action.
const (
	IRQDataNone    uint32 = 1 << 0
	IRQDataBool    uint32 = 1 << 1
	IRQDataEventfd uint32 = 1 << 2 // eventfds come with the message; if there are none, the old ones are removed
	IRQMask        uint32 = 1 << 3
	IRQUnmask      uint32 = 1 << 4
	IRQTrigger     uint32 = 1 << 5
)

const irqSetSize = 20

// IRQSet is the body of DEVICE_SET_IRQS. Data of one byte for each vector may follow it.
type IRQSet struct{ Flags, Index, Start, Count uint32 }

// Append appends the message's body.
func (s *IRQSet) Append(b []byte) []byte {
	for _, v := range [5]uint32{irqSetSize, s.Flags, s.Index, s.Start, s.Count} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseIRQSet parses the body of DEVICE_SET_IRQS.
func ParseIRQSet(b []byte) (s IRQSet, err error) {
	if len(b) < irqSetSize {
		return s, short("DEVICE_SET_IRQS", b, irqSetSize)
	}
	le := binary.LittleEndian
	s = IRQSet{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:])}
	if s.Start > 1<<16 || s.Count > 1<<16 { // MSI-X has at most 2048 vectors; with this limit sums cannot wrap
		return s, fmt.Errorf("vfio-user DEVICE_SET_IRQS: %d vectors from %d on", s.Count, s.Start)
	}
	return s, nil
}

// Flags of a Map.
const (
	MapRead  uint32 = 1 << 0
	MapWrite uint32 = 1 << 1
)

const (
	mapSize   = 32
	unmapSize = 24
)

// Range is a range of the client's DMA addresses.
type Range struct{ Addr, Size uint64 } // bytes

// everything covers all addresses that a range can have: none contains the last address (ParseMap).
var everything = Range{0, math.MaxUint64}

// Contains reports whether o lies inside r. Neither may wrap.
func (r Range) Contains(o Range) bool { return r.Addr <= o.Addr && o.last() <= r.last() }

func (r Range) String() string { return fmt.Sprintf("%#x+%#x", r.Addr, r.Size) }

// last returns the last address of a range. Unlike the end it cannot overflow.
func (r Range) last() uint64 { return r.Addr + (r.Size - 1) }

// Overlaps reports whether two ranges that do not wrap share an address.
func (r Range) Overlaps(o Range) bool { return r.Addr <= o.last() && o.Addr <= r.last() }

// Without returns what is left of r after o is removed: nothing, one range, or one on each side.
func (r Range) Without(o Range) (left []Range) {
	if !r.Overlaps(o) {
		return []Range{r}
	}
	if r.Addr < o.Addr {
		left = append(left, Range{r.Addr, o.Addr - r.Addr})
	}
	if r.last() > o.last() {
		left = append(left, Range{o.last() + 1, r.last() - o.last()})
	}
	return left
}

// ok returns an error if a range is empty or wraps.
func (r Range) ok() error {
	if r.Size == 0 || r.last() < r.Addr {
		return fmt.Errorf("the range %s is empty or wraps", r)
	}
	return nil
}

// Map is the body of DMA_MAP: memory of the client, at Offset bytes in the file that comes with the
// message. Without a file the memory cannot be accessed.
type Map struct {
	Flags  uint32
	Offset uint64
	Range
}

// Append appends the message's body.
func (m *Map) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, mapSize)
	b = binary.LittleEndian.AppendUint32(b, m.Flags)
	b = binary.LittleEndian.AppendUint64(b, m.Offset)
	b = binary.LittleEndian.AppendUint64(b, m.Addr)
	return binary.LittleEndian.AppendUint64(b, m.Size)
}

// ParseMap parses the body of DMA_MAP.
func ParseMap(b []byte) (m Map, err error) {
	if len(b) < mapSize {
		return m, short("DMA_MAP", b, mapSize)
	}
	le := binary.LittleEndian
	m = Map{Flags: le.Uint32(b[4:]), Offset: le.Uint64(b[8:]), Range: Range{le.Uint64(b[16:]), le.Uint64(b[24:])}}
	if err := m.ok(); err != nil {
		return m, fmt.Errorf("vfio-user DMA_MAP: %w", err)
	}
	if m.Size > math.MaxInt64 || m.Offset > math.MaxInt64-m.Size || m.Addr > math.MaxUint64-m.Size {
		return m, fmt.Errorf("vfio-user DMA_MAP: %s at file offset %#x wraps", m.Range, m.Offset)
	}
	return m, nil
}

// UnmapAll is the flag of DMA_UNMAP that removes all mappings. It comes from VFIO
// (VFIO_DMA_UNMAP_FLAG_ALL), and QEMU sends it.
const UnmapAll uint32 = 1 << 1

// Unmap is the body of DMA_UNMAP, and of its reply.
type Unmap struct {
	Flags uint32
	Range
}

// Append appends the message's body.
func (u *Unmap) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, unmapSize)
	b = binary.LittleEndian.AppendUint32(b, u.Flags)
	b = binary.LittleEndian.AppendUint64(b, u.Addr)
	return binary.LittleEndian.AppendUint64(b, u.Size)
}

// ParseUnmap parses the body of DMA_UNMAP.
func ParseUnmap(b []byte) (u Unmap, err error) {
	if len(b) < unmapSize {
		return u, short("DMA_UNMAP", b, unmapSize)
	}
	le := binary.LittleEndian
	u = Unmap{Flags: le.Uint32(b[4:]), Range: Range{le.Uint64(b[8:]), le.Uint64(b[16:])}}
	if u.Flags&UnmapAll != 0 {
		return u, nil
	}
	if err := u.ok(); err != nil {
		return u, fmt.Errorf("vfio-user DMA_UNMAP: %w", err)
	}
	return u, nil
}

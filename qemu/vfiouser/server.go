package vfiouser

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// Device is a PCI device that a client drives. Serve calls its methods one at a time. None may wait
// for the client, which stops the guest's processors until it has the reply.
type Device interface {
	// Region describes a region; it need not set Index. The device keeps ownership of the file of a
	// mappable region. The file of other regions is NoFile.
	Region(index uint32) (info RegionInfo, file int)
	// Read and Write access bytes that lie inside a region.
	Read(region uint32, off uint64, b []byte)
	Write(region uint32, off uint64, b []byte)
	// Vectors returns the number of interrupts of a kind.
	Vectors(irq uint32) uint32
	// SetIRQs sets the eventfds of the vectors from start on; NoFile removes a vector's eventfd.
	// The device owns fds, also when it fails.
	SetIRQs(irq, start uint32, fds []int) error
	// Trigger raises an interrupt.
	Trigger(irq, vector uint32)
	// Map maps a range of DMA addresses, which overlaps no other. The device owns file, also when
	// it fails; with NoFile the memory cannot be accessed. More than MaxMaps ranges at once are
	// refused with ENOSPC.
	Map(m Map, file int) error
	// Unmap removes all addresses of r, also from the middle of larger ranges. When it returns the
	// device no longer uses that memory.
	Unmap(r Range)
	// Reset puts the device into its initial state. Mappings and interrupts stay.
	Reset()
}

// NoFile is the value of a descriptor that is absent.
const NoFile = -1

// server serves one connection.
type server struct {
	conn    *net.UnixConn
	dev     Device
	greeted bool
	maps    mappings
	reply   []byte
}

// Serve serves a client until it disconnects, which is no error, or breaks the protocol. Before
// Serve returns it removes all mappings and eventfds of the client.
func Serve(conn *net.UnixConn, dev Device) error {
	s := &server{conn: conn, dev: dev}
	defer s.leave()
	buf := make([]byte, maxMessage)
	for {
		m, err := readMessage(conn, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.take(&m)
			m.close()
		}
		if err != nil {
			return err
		}
	}
}

// leave removes the client's eventfds and mappings from the device.
func (s *server) leave() {
	for irq := range uint32(NumIRQs) {
		_ = s.clearIRQs(irq)
	}
	s.unmapAll()
}

// take executes one message and replies. After an error the connection must be closed.
func (s *server) take(m *message) error {
	if m.Flags&typeMask == FlagReply {
		return fmt.Errorf("vfio-user %v: a reply, and nothing was asked", m.Command)
	}
	if s.greeted == (m.Command == Version) {
		return fmt.Errorf("vfio-user %v: VERSION is the first message, and comes once", m.Command)
	}
	body, file, err := s.answer(m)
	var no unix.Errno
	if err != nil && !errors.As(err, &no) {
		return err
	}
	if m.Flags&FlagNoReply != 0 {
		return nil
	}
	h := Header{ID: m.ID, Command: m.Command, Flags: FlagReply}
	if err != nil {
		h.Flags |= FlagError
		h.Errno = uint32(no)
		body, file = nil, NoFile
	}
	if file != NoFile {
		return writeMessage(s.conn, h, body, file)
	}
	return writeMessage(s.conn, h, body)
}

// answer executes a message and returns the body of the reply and its file, or NoFile. If the error
// is an errno, that is the reply.
func (s *server) answer(m *message) (body []byte, file int, err error) {
	switch m.Command {
	case RegionRead:
		body, err = s.read(m)
	case RegionWrite:
		body, err = s.write(m)
	case DMAMap:
		err = s.mapDMA(m)
	case DMAUnmap:
		body, err = s.unmapDMA(m)
	case SetIRQs:
		err = s.setIRQs(m)
	case GetRegionInfo:
		return s.regionInfo(m)
	case GetIRQInfo:
		body, err = s.irqInfo(m)
	case GetInfo:
		body, err = s.info(m)
	case Version:
		body, err = s.version(m)
	case Reset:
		s.dev.Reset()
	default:
		err = unix.ENOSYS
	}
	return body, NoFile, err
}

// version returns the reply to the greeting.
func (s *server) version(m *message) ([]byte, error) {
	g, err := ParseGreeting(m.body)
	if err != nil {
		return nil, err
	}
	if g.Major != versionMajor {
		return nil, fmt.Errorf("vfio-user VERSION: the client speaks version %d.%d, this server %d.%d", g.Major, g.Minor, versionMajor, versionMinor)
	}
	s.greeted = true
	ours := Greeting{Major: versionMajor, Minor: versionMinor, Capabilities: Capabilities{MaxFDs: MaxFDs, MaxTransfer: MaxTransfer, MaxMaps: MaxMaps, PageSizes: 4096}}
	return ours.Append(nil), nil
}

// fits cuts a reply to the length for which the client has room: vfio-user "Message sizes". It
// fails if the client has no room for the first head bytes.
func fits(body []byte, head int, argsz uint32) ([]byte, error) {
	if argsz < uint32(head) {
		return nil, unix.EINVAL
	}
	return body[:min(len(body), int(argsz))], nil
}

func (s *server) info(m *message) ([]byte, error) {
	_, argsz, err := ParseInfo(m.body)
	if err != nil {
		return nil, unix.EINVAL
	}
	i := Info{InfoReset | InfoPCI, NumRegions, NumIRQs}
	return fits(i.Append(nil), infoSize, argsz)
}

func (s *server) regionInfo(m *message) (body []byte, file int, err error) {
	r, argsz, err := ParseRegionInfo(m.body)
	if err != nil || r.Index >= NumRegions {
		return nil, NoFile, unix.EINVAL
	}
	info, file := s.dev.Region(r.Index)
	info.Index = r.Index
	if info.Flags&RegionMappable == 0 {
		file = NoFile
	}
	body, err = fits(info.Append(nil), regionSize, argsz)
	return body, file, err
}

func (s *server) irqInfo(m *message) ([]byte, error) {
	i, argsz, err := ParseIRQInfo(m.body)
	if err != nil || i.Index >= NumIRQs {
		return nil, unix.EINVAL
	}
	i.Flags, i.Count = IRQEventfd|irqNoResize, s.dev.Vectors(i.Index)
	return fits(i.Append(nil), irqInfoSize, argsz)
}

// access checks that an access lies inside its region.
func (s *server) access(m *message, flag uint32) (a Access, data []byte, err error) {
	if a, data, err = ParseAccess(m.body); err != nil {
		return a, nil, unix.EINVAL
	}
	if a.Region >= NumRegions {
		return a, nil, unix.EINVAL
	}
	info, _ := s.dev.Region(a.Region)
	if info.Flags&flag == 0 || a.Offset > info.Size || uint64(a.Count) > info.Size-a.Offset {
		return a, nil, unix.EINVAL
	}
	return a, data, nil
}

func (s *server) read(m *message) ([]byte, error) {
	a, _, err := s.access(m, RegionReadable)
	if err != nil {
		return nil, err
	}
	s.reply = append(a.Append(s.reply[:0]), make([]byte, a.Count)...)
	s.dev.Read(a.Region, a.Offset, s.reply[accessSize:])
	return s.reply, nil
}

func (s *server) write(m *message) ([]byte, error) {
	a, data, err := s.access(m, RegionWritable)
	if err != nil {
		return nil, err
	}
	if len(data) != int(a.Count) {
		return nil, unix.EINVAL
	}
	s.dev.Write(a.Region, a.Offset, data)
	return a.Append(s.reply[:0]), nil
}

func (s *server) mapDMA(m *message) error {
	r, err := ParseMap(m.body)
	if err != nil {
		return unix.EINVAL
	}
	if m.fds.Len() > 1 {
		return unix.EINVAL
	}
	if err := s.maps.add(r.Range); err != nil {
		return err
	}
	if err := s.dev.Map(r, m.fds.Take()); err != nil {
		_, _ = s.maps.remove(r.Range)
		return errnoOf(err)
	}
	return nil
}

func (s *server) unmapDMA(m *message) ([]byte, error) {
	u, err := ParseUnmap(m.body)
	if err != nil {
		return nil, unix.EINVAL
	}
	if u.Flags&UnmapAll != 0 {
		s.unmapAll()
		return u.Append(nil), nil
	}
	lost, err := s.maps.remove(u.Range)
	if lost > 0 {
		s.dev.Unmap(u.Range)
	}
	return u.Append(nil), err
}

func (s *server) unmapAll() {
	if len(s.maps.list) > 0 {
		s.maps.list = nil
		s.dev.Unmap(everything)
	}
}

// setIRQs executes DEVICE_SET_IRQS: linux/vfio.h, VFIO_DEVICE_SET_IRQS. It supports no masking,
// because QEMU keeps the mask bits of MSI and MSI-X.
func (s *server) setIRQs(m *message) error {
	q, err := ParseIRQSet(m.body)
	if err != nil || q.Index >= NumIRQs {
		return unix.EINVAL
	}
	if there := s.dev.Vectors(q.Index); q.Start > there || q.Count > there-q.Start {
		return unix.EINVAL
	}
	switch q.Flags {
	case IRQTrigger | IRQDataNone:
		if q.Count == 0 {
			return s.clearIRQs(q.Index)
		}
		for i := range q.Count {
			s.dev.Trigger(q.Index, q.Start+i)
		}
		return nil
	case IRQTrigger | IRQDataEventfd:
		return s.signal(m, &q)
	}
	return unix.EINVAL
}

// signal passes eventfds to the device: one for each vector, or none, which removes the old ones.
func (s *server) signal(m *message, q *IRQSet) error {
	if n := m.fds.Len(); n != 0 && n != int(q.Count) {
		return unix.EINVAL
	}
	fds := make([]int, q.Count)
	for i := range fds {
		fds[i] = m.fds.Take()
	}
	return errnoOf(s.dev.SetIRQs(q.Index, q.Start, fds))
}

// clearIRQs removes the eventfds of all interrupts of a kind.
func (s *server) clearIRQs(irq uint32) error {
	none := make([]int, s.dev.Vectors(irq))
	for i := range none {
		none[i] = NoFile
	}
	return errnoOf(s.dev.SetIRQs(irq, 0, none))
}

// errnoOf turns an error of the device into an errno, so that it is sent as the reply and the
// connection stays.
func errnoOf(err error) error {
	var no unix.Errno
	if err == nil || errors.As(err, &no) {
		return err
	}
	return unix.EINVAL
}

// MaxMaps is the largest number of mappings of a client: the protocol's default. With a vIOMMU each
// page that a guest maps may be one mapping.
const MaxMaps = 65535

// mappings holds the ranges that a client has mapped, in ascending order. They do not overlap.
type mappings struct{ list []Range }

// find returns the index of the range that begins where r begins, or the index to insert it at.
func (m *mappings) find(r Range) (at int) {
	at, _ = slices.BinarySearchFunc(m.list, r, func(a, b Range) int { return cmp.Compare(a.Addr, b.Addr) })
	return at
}

// add adds a range. It does not limit the number of ranges: Device.Map does.
func (m *mappings) add(r Range) error {
	at := m.find(r)
	if at < len(m.list) && m.list[at].Overlaps(r) || at > 0 && m.list[at-1].Overlaps(r) {
		return unix.EEXIST // vfio-user "VFIO_USER_DMA_MAP"
	}
	m.list = slices.Insert(m.list, at, r)
	return nil
}

// remove removes the addresses of r and returns the number of ranges that lost addresses. A client
// with an IOMMU unmaps whole parts of its address space, which may be empty, and parts of ranges
// that it mapped at once.
func (m *mappings) remove(r Range) (lost int, err error) {
	first := m.find(r)
	if first > 0 && m.list[first-1].Overlaps(r) {
		first--
	}
	var left []Range
	end := first
	for ; end < len(m.list) && m.list[end].Overlaps(r); end++ {
		left = append(left, m.list[end].Without(r)...)
	}
	if len(m.list)-(end-first)+len(left) > MaxMaps {
		return 0, unix.ENOSPC
	}
	m.list = slices.Replace(m.list, first, end, left...)
	return end - first, nil
}

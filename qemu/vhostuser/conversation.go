package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// Device is what the conversation drives. All methods are called from Serve's
// goroutine.
type Device interface {
	// Layout returns what the device has of the protocol; it does not change.
	Layout() Layout
	// Features returns the virtio feature bits offered beside the protocol bit.
	Features() uint64
	// Config fills b from the device's configuration space at off; false if the
	// range does not exist.
	Config(off uint32, b []byte) bool
	// SetMemory announces the guest's memory. Once it returns, no mapping that is
	// missing from regions may be touched again. Rings keep running: st holds
	// their addresses for the new regions.
	SetMemory(st *State, regions []*Mapping) error
	// StartVring runs ring i. kick, call and err stay the conversation's; kick is
	// valid until StopVring(i) or the next StartVring(i). A negative descriptor is
	// absent.
	StartVring(st *State, i int, kick, call, errfd int) error
	// SetCall replaces the descriptors of a running ring; the old ones must not be
	// used once it returned.
	SetCall(i, call, errfd int)
	// StopVring stops ring i and returns the index of the next available entry it
	// would have taken. Once it returned the ring's memory is not touched.
	StopVring(i int) (base uint32)
}

// Conversation is the state of one front end's connection.
type Conversation struct {
	State State

	dev    Device
	layout Layout
	conn   *net.UnixConn
	maps   []*Mapping
	fds    []ringFDs
	back   int // the channel for requests of this side; -1: none
	// ignored counts messages answered with a refusal or dropped because their
	// feature was not offered.
	ignored uint64
}

type ringFDs struct{ kick, call, err int }

// Serve holds the conversation with the front end on conn until it leaves, sends
// nonsense or conn is closed. All rings are stopped, all memory is taken back
// from the device and all descriptors are closed when it returns. The error is
// nil if the front end left in order. Serve does not close conn.
func Serve(conn *net.UnixConn, dev Device) error {
	c := &Conversation{dev: dev, conn: conn, layout: dev.Layout(), back: -1}
	c.State.Vrings, c.fds = make([]Vring, c.layout.Rings), make([]ringFDs, c.layout.Rings)
	for i := range c.fds {
		c.fds[i] = ringFDs{-1, -1, -1}
	}
	defer c.teardown()
	for {
		m, err := ReadMessage(conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = c.handle(m)
		m.Close()
		if err != nil {
			return fmt.Errorf("vhost-user %v: %w", m.Request, err)
		}
	}
}

func (c *Conversation) teardown() {
	for i := range c.fds {
		c.stop(i)
	}
	c.State.Regions = nil
	_ = c.dev.SetMemory(&c.State, nil)
	for _, m := range c.maps {
		m.unmap()
	}
	c.maps = nil
	replaceFD(&c.back, -1)
	for i := range c.fds {
		f := &c.fds[i]
		replaceFD(&f.kick, -1)
		replaceFD(&f.call, -1)
		replaceFD(&f.err, -1)
	}
}

// errRefused is a message of the protocol that needs a feature we did not offer.
var errRefused = errors.New("not offered")

// handle executes one message and answers it. A returned error ends the
// conversation.
func (c *Conversation) handle(m *Message) error {
	reply, err := c.execute(m)
	if errors.Is(err, errRefused) {
		c.ignored++
		if m.Flags&FlagNeedReply == 0 {
			return nil
		}
		return c.ack(m, 1)
	}
	if err != nil {
		if reply == nil && m.Flags&FlagNeedReply != 0 {
			_ = c.ack(m, 1) // tell QEMU before leaving, so that its message names the cause
		}
		return err
	}
	switch {
	case reply != nil:
		return WriteMessage(c.conn, m.Request, FlagReply, reply)
	case m.Flags&FlagNeedReply != 0:
		// Every message may ask: QEMU 7.2 does for memory tables, 11 also for rings.
		return c.ack(m, 0)
	}
	return nil
}

func (c *Conversation) ack(m *Message, status uint64) error {
	return WriteMessage(c.conn, m.Request, FlagReply, binary.LittleEndian.AppendUint64(nil, status))
}

// execute returns the payload of the message's own reply, nil if it has none.
func (c *Conversation) execute(m *Message) (reply []byte, err error) {
	le := binary.LittleEndian
	s := &c.State
	offered := c.layout.Protocol
	switch m.Request {
	case GetFeatures:
		return le.AppendUint64(nil, c.dev.Features()|FeatureProtocol), nil
	case SetFeatures:
		return nil, c.setFeatures(m)
	case GetProtocolFeatures:
		return le.AppendUint64(nil, offered), nil
	case SetProtocolFeatures:
		v, err := parseU64(m.Payload)
		if err != nil {
			return nil, err
		}
		if v&^offered != 0 {
			return nil, fmt.Errorf("protocol features %#x were not offered", v&^offered)
		}
		s.ProtocolFeatures = v
		return nil, nil
	case SetOwner:
		s.Owned = true
		return nil, nil
	case ResetOwner: // deprecated, and no front end uses it for a reset
		return nil, nil
	case GetQueueNum:
		return le.AppendUint64(nil, c.layout.Queues), nil
	case GetMaxMemSlots:
		return le.AppendUint64(nil, MaxMemSlots), nil
	case GetConfig:
		return c.getConfig(m)
	case NetSetMTU:
		return nil, c.setMTU(m)
	case SetMemTable:
		return nil, c.setMemTable(m)
	case AddMemReg:
		return nil, c.addRegion(m)
	case RemMemReg:
		return nil, c.removeRegion(m)
	case SetVringNum, SetVringBase, SetVringEnable:
		return nil, c.setVringState(m)
	case GetVringBase:
		return c.getVringBase(m)
	case SetVringAddr:
		return nil, c.setVringAddr(m)
	case SetVringKick, SetVringCall, SetVringErr:
		return nil, c.setVringFD(m)
	case SetBackendReqFD:
		return nil, c.setBackendReqFD(m)
	default:
		return nil, errRefused
	}
}

// MTUTaker is a Device with an MTU that the front end tells (NET_SET_MTU).
type MTUTaker interface {
	// SetMTU is told what the guest is told, bytes.
	SetMTU(mtu uint64) error
}

func (c *Conversation) setMTU(m *Message) error {
	d, ok := c.dev.(MTUTaker)
	if !ok || c.layout.Protocol&ProtocolNetMTU == 0 {
		return errRefused
	}
	v, err := parseU64(m.Payload)
	if err != nil {
		return err
	}
	return d.SetMTU(v)
}

func (c *Conversation) setFeatures(m *Message) error {
	v, err := parseU64(m.Payload)
	if err != nil {
		return err
	}
	if extra := v &^ (c.dev.Features() | FeatureProtocol); extra != 0 {
		return fmt.Errorf("features %#x were not offered", extra)
	}
	c.State.Features = v
	return nil
}

// getConfig echoes the 12-byte config header in front of the bytes; an empty
// reply is the protocol's way to refuse.
func (c *Conversation) getConfig(m *Message) ([]byte, error) {
	const hdr = 12
	if len(m.Payload) < hdr {
		return nil, fmt.Errorf("payload of %d bytes, want at least %d", len(m.Payload), hdr)
	}
	off, size := binary.LittleEndian.Uint32(m.Payload), binary.LittleEndian.Uint32(m.Payload[4:])
	if size > uint32(len(m.Payload)-hdr) {
		return nil, fmt.Errorf("size %d exceeds the payload of %d bytes", size, len(m.Payload)-hdr)
	}
	reply := slices.Clone(m.Payload[:hdr+size])
	if !c.dev.Config(off, reply[hdr:]) {
		return []byte{}, nil
	}
	return reply, nil
}

func (c *Conversation) setMemTable(m *Message) error {
	rs, err := ParseMemTable(m.Payload)
	if err != nil {
		return err
	}
	if len(rs) != m.FDs() {
		return fmt.Errorf("%d regions with %d descriptors", len(rs), m.FDs())
	}
	next := State{}
	var maps []*Mapping
	undo := func() {
		for _, mp := range maps {
			mp.unmap()
		}
	}
	for _, r := range rs {
		mp, err := next.mapNew(r, m)
		if err != nil {
			undo()
			return err
		}
		maps = append(maps, mp)
	}
	return c.replaceMemory(next.Regions, maps)
}

func (c *Conversation) addRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	if len(c.State.Regions) >= MaxMemSlots {
		return fmt.Errorf("more than %d memory regions", MaxMemSlots)
	}
	next := State{Regions: slices.Clone(c.State.Regions)}
	mp, err := next.mapNew(r, m)
	if err != nil {
		return err
	}
	return c.replaceMemory(next.Regions, append(slices.Clone(c.maps), mp))
}

func (c *Conversation) removeRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	i := c.State.findRegion(r)
	if i < 0 {
		return fmt.Errorf("memory region %#x+%#x does not exist", r.GPA, r.Size)
	}
	return c.replaceMemory(slices.Delete(slices.Clone(c.State.Regions), i, i+1), slices.Delete(slices.Clone(c.maps), i, i+1))
}

// parseSlot reads the payload of ADD_MEM_REG and REM_MEM_REG: eight bytes of
// padding and one region.
func parseSlot(m *Message) (Region, error) {
	if len(m.Payload) < 8+RegionSize {
		return Region{}, fmt.Errorf("payload of %d bytes, want %d", len(m.Payload), 8+RegionSize)
	}
	return parseRegion(m.Payload[8:]), nil
}

// mapNew checks and maps one more region and appends it to the state. The
// descriptor of a region that is refused stays the message's.
func (s *State) mapNew(r Region, m *Message) (*Mapping, error) {
	fd := m.TakeFD()
	if fd < 0 {
		return nil, fmt.Errorf("memory region %#x+%#x has no descriptor", r.GPA, r.Size)
	}
	err := s.checkRegion(r)
	var mp *Mapping
	if err == nil {
		mp, err = mapRegion(r, fd)
	}
	if err != nil {
		m.giveBack(fd)
		return nil, err
	}
	s.Regions = append(s.Regions, r)
	return mp, nil
}

// replaceMemory hands the new set of mappings to the device and unmaps what is
// not in it any more.
func (c *Conversation) replaceMemory(regions []Region, maps []*Mapping) error {
	old := c.maps
	c.State.Regions, c.maps = regions, maps
	err := c.dev.SetMemory(&c.State, maps)
	for _, mp := range old {
		if !slices.Contains(maps, mp) {
			mp.unmap()
		}
	}
	return err
}

func (c *Conversation) ring(i uint32) (int, error) {
	if i >= uint32(c.layout.Rings) {
		return 0, fmt.Errorf("ring %d does not exist, the device has %d", i, c.layout.Rings)
	}
	return int(i), nil
}

func (c *Conversation) setVringState(m *Message) error {
	v, err := ParseVringState(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(v.Index)
	if err != nil {
		return err
	}
	r := &c.State.Vrings[i]
	switch m.Request {
	case SetVringNum:
		if v.Num == 0 || v.Num > maxRingSize || v.Num&(v.Num-1) != 0 && !c.State.Packed() {
			return fmt.Errorf("ring %d has size %d, want a power of two up to %d", i, v.Num, maxRingSize)
		}
		if r.Running {
			return fmt.Errorf("ring %d is running", i)
		}
		r.Num = uint16(v.Num)
	case SetVringBase:
		if v.Num > 0xffff && !c.State.Packed() {
			return fmt.Errorf("ring %d has base %d, want at most 65535", i, v.Num)
		}
		if r.Running {
			return fmt.Errorf("ring %d is running", i)
		}
		r.Base = v.Num
		if v.Num == 0 && c.State.Packed() && c.State.Features&FeatureProtocol == 0 {
			r.Base = packedBegin // User Mode Linux gives its packed rings the base of split ones
		}
	case SetVringEnable:
		r.Enabled = v.Num != 0
		if !r.Enabled {
			c.stop(i)
		}
	}
	return c.startIfReady(i)
}

func (c *Conversation) setVringAddr(m *Message) error {
	a, err := ParseVringAddr(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(a.Index)
	if err != nil {
		return err
	}
	r := &c.State.Vrings[i]
	if r.Running {
		return fmt.Errorf("ring %d is running", i)
	}
	r.Desc, r.Used, r.Avail, r.HasAddr = a.Desc, a.Used, a.Avail, true
	return c.startIfReady(i)
}

// getVringBase stops the ring before it answers: from the reply on the front end
// may do anything with the ring's memory.
func (c *Conversation) getVringBase(m *Message) ([]byte, error) {
	v, err := ParseVringState(m.Payload)
	if err != nil {
		return nil, err
	}
	i, err := c.ring(v.Index)
	if err != nil {
		return nil, err
	}
	c.stop(i)
	// The ring does not start again before it gets a new kick descriptor.
	c.State.Vrings[i].HasKick = false
	replaceFD(&c.fds[i].kick, -1)
	return VringState{Index: v.Index, Num: c.State.Vrings[i].Base}.Append(nil), nil
}

func (c *Conversation) setVringFD(m *Message) error {
	v, err := parseU64(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(uint32(v & 0xff))
	if err != nil {
		return err
	}
	fd := m.TakeFD()
	if v&noFD != 0 && fd >= 0 {
		m.giveBack(fd)
		return fmt.Errorf("ring %d: a descriptor came with the no-descriptor bit", i)
	}
	if v&noFD == 0 {
		check := eventfd.Check
		if m.Request == SetVringCall {
			check = eventfd.CheckCall
		}
		if err := check(fd); err != nil {
			m.giveBack(fd)
			return fmt.Errorf("ring %d: %w", i, err)
		}
	}
	f, r := &c.fds[i], &c.State.Vrings[i]
	switch m.Request {
	case SetVringKick:
		if fd < 0 {
			return fmt.Errorf("ring %d: polling without a kick descriptor is not offered", i)
		}
		c.stop(i)
		replaceFD(&f.kick, fd)
		r.HasKick = true
		return c.startIfReady(i)
	case SetVringCall:
		c.dev.SetCall(i, fd, f.err)
		replaceFD(&f.call, fd)
	case SetVringErr:
		c.dev.SetCall(i, f.call, fd)
		replaceFD(&f.err, fd)
	}
	return nil
}

// setBackendReqFD keeps the channel open: a front end takes its end for that of the conversation.
func (c *Conversation) setBackendReqFD(m *Message) error {
	if c.layout.Protocol&ProtocolBackendReq == 0 {
		return errRefused
	}
	fd := m.TakeFD()
	if err := eventfd.CheckSocket(fd); err != nil {
		m.giveBack(fd)
		return err
	}
	replaceFD(&c.back, fd)
	return nil
}

func (c *Conversation) startIfReady(i int) error {
	s := &c.State
	if s.Vrings[i].Running || !s.ready(i) {
		return nil
	}
	f := &c.fds[i]
	if err := c.dev.StartVring(s, i, f.kick, f.call, f.err); err != nil {
		return fmt.Errorf("ring %d: %w", i, err)
	}
	s.Vrings[i].Running = true
	return nil
}

func (c *Conversation) stop(i int) {
	if r := &c.State.Vrings[i]; r.Running {
		r.Base = c.dev.StopVring(i)
		r.Running = false
	}
}

// noFD in the payload of a message about a ring's descriptor says that none
// comes with it.
const noFD = 1 << 8

// replaceFD closes what was in place.
func replaceFD(at *int, fd int) {
	if *at >= 0 {
		_ = unix.Close(*at)
	}
	*at = fd
}

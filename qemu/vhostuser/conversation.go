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
	"github.com/falcon-vnic/vnic/qemu/guestmem"
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
	// SetCall replaces the descriptors of a running ring; the old ones are closed
	// once it returned.
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
	memory *guestmem.Budget
	maps   []*Mapping
	fds    []ringFDs
	back   int // the channel for requests of this side; eventfd.None: there is none
}

type ringFDs struct{ kick, call, err int }

var noRingFDs = ringFDs{eventfd.None, eventfd.None, eventfd.None}

// Serve holds the conversation with the front end on conn until it leaves, sends
// nonsense or conn is closed. All rings are stopped, all memory is taken back
// from the device and all descriptors are closed when it returns. The error is
// nil if the front end left in order. Serve does not close conn.
//
// The guest's memory is mapped within a budget; without one none of it is mapped, for a device that
// only hands it on.
func Serve(conn *net.UnixConn, dev Device, memory *guestmem.Budget) error {
	c := &Conversation{dev: dev, conn: conn, memory: memory, layout: dev.Layout(), back: eventfd.None}
	c.State.Vrings, c.fds = make([]Vring, c.layout.Rings), make([]ringFDs, c.layout.Rings)
	for i := range c.fds {
		c.State.Vrings[i].NoBase, c.fds[i] = true, noRingFDs
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
		m.close()
	}
	c.maps = nil
	replaceFD(&c.back, eventfd.None)
	for i := range c.fds {
		f := &c.fds[i]
		replaceFD(&f.kick, eventfd.None)
		replaceFD(&f.call, eventfd.None)
		replaceFD(&f.err, eventfd.None)
	}
}

// errRefused is a message of the protocol that needs a feature we did not offer.
var errRefused = errors.New("not offered")

// handle executes one message and answers it. A returned error ends the
// conversation.
func (c *Conversation) handle(m *Message) error {
	reply, err := c.execute(m)
	if errors.Is(err, errRefused) {
		if m.Flags&FlagNeedReply == 0 {
			return nil
		}
		return c.ack(m, 1)
	}
	if err != nil {
		if m.Flags&FlagNeedReply != 0 {
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

// replaceFD closes what was in place.
func replaceFD(at *int, fd int) {
	if *at != eventfd.None {
		_ = unix.Close(*at)
	}
	*at = fd
}

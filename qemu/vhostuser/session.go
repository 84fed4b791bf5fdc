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

// Device is the device behind a connection. Serve calls all methods from its own goroutine.
type Device interface {
	// Layout returns the device's rings and protocol features; they do not change.
	Layout() Layout
	// Features returns the virtio feature bits that are offered besides FeatureProtocol.
	Features() uint64
	// Config fills b from the device's configuration space at off. It returns false if the range
	// does not exist.
	Config(off uint32, b []byte) bool
	// SetMemory announces the guest's memory. After it returns, the device must not access a
	// mapping that is missing from regions. Rings keep running; st holds their addresses for the
	// new regions.
	SetMemory(st *State, regions []*Mapping) error
	// StartVring starts ring i. The caller keeps ownership of kick, call and errfd; kick is valid
	// until StopVring(i) or the next StartVring(i). A negative descriptor means there is none.
	StartVring(st *State, i int, kick, call, errfd int) error
	// SetCall replaces the descriptors of a ring. The old ones are closed after it returns.
	SetCall(i, call, errfd int)
	// StopVring stops ring i and returns the index of the next available entry that it would have
	// taken. After it returns, the device must not access the ring's memory.
	StopVring(i int) (base uint32)
}

// Session is the state of one front end's connection.
type Session struct {
	State State

	dev    Device
	layout Layout
	conn   *net.UnixConn
	memory *guestmem.Budget
	maps   []*Mapping
	fds    []ringFDs
	back   int // the socket for requests of the back end; eventfd.None: none
}

type ringFDs struct{ kick, call, err int }

var noRingFDs = ringFDs{eventfd.None, eventfd.None, eventfd.None}

// Serve serves the front end on conn until it disconnects, breaks the protocol or conn is closed.
// Before it returns it stops all rings, revokes all memory from the device and closes all
// descriptors. The error is nil if the front end disconnected between two messages. Serve does not
// close conn.
//
// It maps the guest's memory within the budget memory. If memory is nil it maps nothing, for a
// device that only passes the memory on.
func Serve(conn *net.UnixConn, dev Device, memory *guestmem.Budget) error {
	c := &Session{dev: dev, conn: conn, memory: memory, layout: dev.Layout(), back: eventfd.None}
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

func (c *Session) teardown() {
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

// errRefused is the error of a message that needs a protocol feature that was not offered.
var errRefused = errors.New("not offered")

// handle executes one message and answers it. After an error the connection must be closed.
func (c *Session) handle(m *Message) error {
	reply, err := c.execute(m)
	if errors.Is(err, errRefused) {
		if m.Flags&FlagNeedReply == 0 {
			return nil
		}
		return c.ack(m, 1)
	}
	if err != nil {
		if m.Flags&FlagNeedReply != 0 {
			_ = c.ack(m, 1) // answer before disconnecting, so that QEMU's error names the request
		}
		return err
	}
	switch {
	case reply != nil:
		return WriteMessage(c.conn, m.Request, FlagReply, reply)
	case m.Flags&FlagNeedReply != 0:
		// Every message may ask for a reply: QEMU 7.2 does for memory tables, QEMU 11 also for
		// rings.
		return c.ack(m, 0)
	}
	return nil
}

func (c *Session) ack(m *Message, status uint64) error {
	return WriteMessage(c.conn, m.Request, FlagReply, binary.LittleEndian.AppendUint64(nil, status))
}

// execute executes a message and returns the payload of its reply, or nil if it has no reply of its
// own.
func (c *Session) execute(m *Message) (reply []byte, err error) {
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
	case ResetOwner: // deprecated: front ends do not use it to reset the device
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

// MTUTaker is a Device that receives the MTU from the front end (NET_SET_MTU).
type MTUTaker interface {
	// SetMTU receives the MTU that is shown to the guest, in bytes.
	SetMTU(mtu uint64) error
}

func (c *Session) setMTU(m *Message) error {
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

func (c *Session) setFeatures(m *Message) error {
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

// getConfig returns the 12-byte config header of the request, followed by the bytes. An empty reply
// is the protocol's refusal.
func (c *Session) getConfig(m *Message) ([]byte, error) {
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

// setBackendReqFD keeps the socket open, although nothing is sent on it: if it is closed, a front
// end assumes that the back end has disconnected.
func (c *Session) setBackendReqFD(m *Message) error {
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

// replaceFD closes the descriptor in *at and stores fd there.
func replaceFD(at *int, fd int) {
	if *at != eventfd.None {
		_ = unix.Close(*at)
	}
	*at = fd
}

package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// frontend is the part of a front end that a Relay needs. It asks for a reply to every message, so
// that each error can be attributed to its message.
type frontend struct {
	conn *net.UnixConn
	// limit is the time limit of one reply.
	limit time.Duration
}

// errDeclined is wrapped by the error of a message that the worker refused.
var errDeclined = errors.New("the worker declined")

// ask sends a message and waits for the reply. It returns the payload of a reply to GET_VRING_BASE,
// and nil for other messages, which are only acknowledged.
func (f *frontend) ask(req Request, payload []byte, fds ...int) ([]byte, error) {
	if err := f.conn.SetDeadline(time.Now().Add(f.limit)); err != nil {
		return nil, err
	}
	if err := WriteMessage(f.conn, req, FlagNeedReply, payload, fds...); err != nil {
		return nil, err
	}
	m, err := ReadMessage(f.conn)
	if err != nil {
		return nil, fmt.Errorf("vhost-user %v: answer: %w", req, err)
	}
	defer m.Close()
	if m.Request != req || m.Flags != FlagVersion|FlagReply {
		return nil, fmt.Errorf("vhost-user %v: answered by %v with flags %#x", req, m.Request, m.Flags)
	}
	if req == GetVringBase {
		return m.Payload, nil
	}
	status, err := parseU64(m.Payload)
	if err == nil && status != 0 {
		err = fmt.Errorf("vhost-user %v: %w with %d; its log says why", req, errDeclined, status)
	}
	return nil, err
}

func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// begin sends the messages that come before memory and rings.
func (f *frontend) begin(protocol, features uint64) error {
	if _, err := f.ask(SetProtocolFeatures, u64(protocol)); err != nil {
		return err
	}
	if _, err := f.ask(SetOwner, nil); err != nil {
		return err
	}
	return f.setFeatures(features)
}

func (f *frontend) setFeatures(features uint64) error {
	_, err := f.ask(SetFeatures, u64(features|FeatureProtocol))
	return err
}

func (f *frontend) addRegion(m *Mapping) error {
	_, err := f.ask(AddMemReg, m.Append(make([]byte, 8)), m.file)
	return err
}

func (f *frontend) removeRegion(m *Mapping) error {
	_, err := f.ask(RemMemReg, m.Append(make([]byte, 8)))
	return err
}

// setTable replaces all regions at once.
func (f *frontend) setTable(maps []*Mapping) error {
	var rs []Region
	var fds []int
	for _, m := range maps {
		rs, fds = append(rs, m.Region), append(fds, m.file)
	}
	_, err := f.ask(SetMemTable, AppendMemTable(nil, rs), fds...)
	return err
}

// start starts a ring at its base, or with resume where the previous worker stopped. The kick
// descriptor comes after the other settings: a ring that was stopped starts as soon as it has one.
func (f *frontend) start(i int, v *Vring, fds ringFDs, resume bool) error {
	index := uint32(i)
	if _, err := f.ask(SetVringNum, VringState{index, uint32(v.Num)}.Append(nil)); err != nil {
		return err
	}
	if !resume {
		if _, err := f.ask(SetVringBase, VringState{index, v.Base}.Append(nil)); err != nil {
			return err
		}
	}
	if _, err := f.ask(SetVringAddr, VringAddr{Index: index, Desc: v.Desc, Used: v.Used, Avail: v.Avail}.Append(nil)); err != nil {
		return err
	}
	if err := f.setCall(i, fds.call, fds.err); err != nil {
		return err
	}
	if err := f.setFD(SetVringKick, i, fds.kick); err != nil {
		return err
	}
	_, err := f.ask(SetVringEnable, VringState{index, 1}.Append(nil))
	return err
}

func (f *frontend) setCall(i, call, errfd int) error {
	if err := f.setFD(SetVringErr, i, errfd); err != nil {
		return err
	}
	return f.setFD(SetVringCall, i, call)
}

func (f *frontend) setFD(req Request, i, fd int) error {
	if fd == eventfd.None {
		_, err := f.ask(req, u64(uint64(i)|noFD))
		return err
	}
	_, err := f.ask(req, u64(uint64(i)), fd)
	return err
}

// stop stops a ring and returns its position.
func (f *frontend) stop(i int) (base uint32, err error) {
	b, err := f.ask(GetVringBase, VringState{Index: uint32(i)}.Append(nil))
	if err != nil {
		return 0, err
	}
	v, err := ParseVringState(b)
	if err == nil && v.Index != uint32(i) {
		err = fmt.Errorf("vhost-user %v: answered with ring %d, base %d", GetVringBase, v.Index, v.Num)
	}
	return v.Num, err
}

package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// frontend is the other half of the conversation, as far as a Relay needs it:
// it asks for an answer to every message, so that an error is the message's own.
type frontend struct {
	conn *net.UnixConn
	// limit bounds how long one answer may take.
	limit time.Duration
}

// errDeclined is a worker's refusal.
var errDeclined = errors.New("the worker declined")

// ask sends a message and returns the answer: the message's own, or nil once it
// is acknowledged.
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

// begin takes the conversation to where memory and rings can be announced.
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

// start runs a ring, from its base on, or where it stands. The kick descriptor comes last: after a
// stop a ring runs as soon as it has one.
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

// stop stops a ring and returns where it stands.
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

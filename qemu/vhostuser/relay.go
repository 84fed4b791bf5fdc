package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// Relay is a Device that passes QEMU's requests on to another back end, the worker, whose front end
// it is. A worker may exit at any time and be replaced. The Relay remembers what it must send to
// the next worker, and answers QEMU itself while there is no worker.
//
//	QEMU ──── Serve ──► Relay ──── frontend ──► Serve ──► the rings' Device
//	      vhost-user             vhost-user            (another process)
//
// Without a worker the rings stand still. Chains are completed in order, so the next worker
// continues at the used index, which is in guest memory, or at the position in the ledger; the
// worker reads it itself. The Relay's process maps no guest memory.
type Relay struct {
	dev   Relayed
	limit time.Duration
	lost  func(error)

	mu       sync.Mutex
	features uint64 // accepted by the driver, as last sent to the worker
	maps     []*Mapping
	rings    []relayRing
	back     *frontend // nil: no worker
}

// Relayed describes the device that a Relay relays.
type Relayed struct {
	Layout   Layout
	Features uint64                          // offered
	Config   func(off uint32, b []byte) bool // as Device.Config; nil: no configuration space
	// Ledger records the positions of packed rings; nil: the device has no packed rings.
	Ledger Ledger
	// CheckMTU returns an error if the front end may not show an MTU to the guest. It is called if
	// the Layout offers ProtocolNetMTU.
	CheckMTU func(mtu uint64) error
	// Anew is called before the first ring starts, unless it starts where it stopped, as after a pause
	// of the guest: then another driver begins. nil: nothing is to be done then.
	Anew func()
}

// Ledger records the positions of a device's packed rings.
type Ledger interface {
	// Begin records that a ring starts at base.
	Begin(ring int, base uint32)
	// Base returns the position of a ring that no worker runs.
	Base(ring int) uint32
}

// relayRing is the state of one ring.
type relayRing struct {
	running bool   // started by QEMU, even while there is no worker
	stopped uint32 // where it was last stopped
	packed  bool
	state   Vring
	used    uint64 // guest-physical address of a split ring's used ring
	fds     ringFDs
}

// NewRelay returns a relay for a device, without a worker. A worker may take limit for one reply.
// If a worker does not reply in time, or replies wrongly, the relay disconnects it and calls lost
// with the reason. lost must not call the relay.
func NewRelay(dev Relayed, limit time.Duration, lost func(error)) *Relay {
	return &Relay{dev: dev, features: dev.Features, limit: limit, lost: lost, rings: make([]relayRing, dev.Layout.Rings)}
}

// Attach connects the relay to a worker and sends it all state. The relay owns conn.
func (r *Relay) Attach(conn *net.UnixConn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.back = &frontend{conn, r.limit}
	if err := r.tell(); err != nil {
		r.drop()
		return err
	}
	return nil
}

// tell sends all state to a new worker.
func (r *Relay) tell() error {
	if err := r.back.begin(r.dev.Layout.Protocol, r.features); err != nil {
		return err
	}
	for _, m := range r.maps {
		if err := r.back.addRegion(m); err != nil {
			return err
		}
	}
	for i := range r.rings {
		ring := &r.rings[i]
		if !ring.running {
			continue
		}
		if err := r.back.start(i, &ring.state, ring.fds, true); err != nil {
			return err
		}
		// Makes the worker interrupt the guest: the previous one may have died after it used
		// buffers and before it signalled them.
		if err := r.back.setCall(i, ring.fds.call, ring.fds.err); err != nil {
			return err
		}
	}
	return nil
}

// base returns the next entry of a ring that no worker runs: for a split ring its used index. If
// guest memory cannot be read, base returns the ring's last known base.
func (r *Relay) base(i int) uint32 {
	ring := &r.rings[i]
	if ring.packed {
		return r.dev.Ledger.Base(i)
	}
	var index [2]byte
	if err := r.read(ring.used+2, index[:]); err != nil {
		return ring.state.Base
	}
	return uint32(binary.LittleEndian.Uint16(index[:]))
}

// read reads guest memory through its file. guestmem.Check has made sure that this does not block.
func (r *Relay) read(addr uint64, b []byte) error {
	for _, m := range r.maps {
		if addr < m.GPA || addr-m.GPA >= m.Size {
			continue
		}
		if n, err := unix.Pread(m.file, b, int64(m.Offset+addr-m.GPA)); err != nil || n != len(b) {
			return fmt.Errorf("guest memory at %#x: %d bytes read: %w", addr, n, err)
		}
		return nil
	}
	return fmt.Errorf("there is no guest memory at %#x", addr)
}

// Detach disconnects the worker.
func (r *Relay) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
}

func (r *Relay) drop() {
	if r.back != nil {
		_ = r.back.conn.Close()
		r.back = nil
	}
}

// failed disconnects a worker that did not execute a request. The next worker is sent all state,
// with what this one missed.
func (r *Relay) failed(err error) {
	r.drop()
	r.lost(err)
}

// Features implements Device.
func (r *Relay) Features() uint64 { return r.dev.Features }

// Layout implements Device.
func (r *Relay) Layout() Layout { return r.dev.Layout }

// Config implements Device.
func (r *Relay) Config(off uint32, b []byte) bool {
	return r.dev.Config != nil && r.dev.Config(off, b)
}

// SetMTU implements MTUTaker.
func (r *Relay) SetMTU(mtu uint64) error { return r.dev.CheckMTU(mtu) }

// SetMemory implements Device. It sends the change to the worker as QEMU made it: one region more,
// one less, or a new table.
func (r *Relay) SetMemory(st *State, maps []*Mapping) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.maps
	r.maps = slices.Clone(maps)
	for i := range r.rings {
		if ring := &r.rings[i]; ring.running {
			if _, _, used, err := st.RingGPA(i); err == nil {
				ring.used = used
			}
		}
	}
	if r.back == nil {
		return nil
	}
	err := r.updateMemory(old, maps)
	if errors.Is(err, errDeclined) { // report it to the front end; the worker's log has the reason
		r.drop()
		return err
	}
	if err != nil {
		r.failed(err)
	}
	return nil
}

func (r *Relay) updateMemory(old, maps []*Mapping) error {
	var gone, fresh []*Mapping
	for _, m := range old {
		if !slices.Contains(maps, m) {
			gone = append(gone, m)
		}
	}
	for _, m := range maps {
		if !slices.Contains(old, m) {
			fresh = append(fresh, m)
		}
	}
	if len(gone) > 0 && len(fresh) > 0 && len(maps) <= maxFDs {
		return r.back.setTable(maps)
	}
	for _, m := range gone {
		if err := r.back.removeRegion(m); err != nil {
			return err
		}
	}
	for _, m := range fresh {
		if err := r.back.addRegion(m); err != nil {
			return err
		}
	}
	return nil
}

// StartVring implements Device.
func (r *Relay) StartVring(st *State, i int, kick, call, errfd int) error {
	_, _, used, err := st.RingGPA(i)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	packed := st.Packed()
	if packed {
		r.dev.Ledger.Begin(i, st.Vrings[i].Base)
	}
	first := !slices.ContainsFunc(r.rings, func(o relayRing) bool { return o.running })
	if r.dev.Anew != nil && first && st.Vrings[i].Base != r.rings[i].stopped {
		r.dev.Anew()
	}
	others := r.features != st.Features&^FeatureProtocol // a driver that starts again may accept other features
	r.features = st.Features &^ FeatureProtocol
	r.rings[i] = relayRing{running: true, packed: packed, state: st.Vrings[i], used: used, fds: ringFDs{kick, call, errfd}}
	if r.back == nil {
		return nil
	}
	if others {
		err = r.back.setFeatures(r.features)
	}
	if err == nil {
		err = r.back.start(i, &r.rings[i].state, r.rings[i].fds, false)
	}
	if err != nil {
		r.failed(err)
	}
	return nil
}

// SetCall implements Device.
func (r *Relay) SetCall(i, call, errfd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ring := &r.rings[i]
	ring.fds.call, ring.fds.err = call, errfd
	if r.back == nil || !ring.running {
		return
	}
	if err := r.back.setCall(i, call, errfd); err != nil {
		r.failed(err)
	}
}

// StopVring implements Device.
func (r *Relay) StopVring(i int) (base uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ring := &r.rings[i]
	ring.running = false
	ring.stopped = r.stop(i)
	return ring.stopped
}

func (r *Relay) stop(i int) (base uint32) {
	if r.back != nil {
		base, err := r.back.stop(i)
		if err == nil {
			return base
		}
		r.failed(err)
	}
	return r.base(i)
}

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

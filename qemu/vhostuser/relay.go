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
)

// Relay is a Device that hands the conversation on to another back end, the
// worker, to which it is the front end. A worker may go at any time and be
// replaced by another: the Relay keeps what the worker has to be told, and what
// the real front end asks meanwhile it answers itself.
//
//	QEMU ──── Serve ──► Relay ──── frontend ──► Serve ──► the rings' Device
//	     conversation           conversation           (another process)
//
// A ring without worker stands still, and its used index, in guest memory, or a ledger says where
// the next worker goes on: chains are completed in order. The worker finds that out. The Relay's
// process maps no guest memory.
type Relay struct {
	dev   Relayed
	limit time.Duration
	lost  func(error)

	mu       sync.Mutex
	features uint64 // that the driver has taken, as the worker was told
	maps     []*Mapping
	rings    []relayRing
	back     *frontend // nil: no worker
}

// Relayed is what a Relay has to know of the device that it stands for.
type Relayed struct {
	Layout   Layout
	Features uint64                          // offered
	Config   func(off uint32, b []byte) bool // Device.Config; nil: there is no configuration space
	// Ledger is where it is noted how packed rings stand; nil: there are no such rings.
	Ledger Ledger
}

// Ledger is the part of a Relayed's that is about one packed ring after the other.
type Ledger interface {
	// Begin says that a ring begins at a base.
	Begin(ring int, base uint32)
	// Base is where a ring stands that nobody runs.
	Base(ring int) uint32
}

// relayRing is a ring that runs, or would if there were a worker.
type relayRing struct {
	running bool
	packed  bool
	state   Vring
	used    uint64 // guest-physical address of a split ring's used ring
	fds     ringFDs
}

// NewRelay returns a relay without worker for a device. A worker has limit for one answer; one that
// gives none, or another than it should, is taken away and lost is told why. lost must not call the
// relay.
func NewRelay(dev Relayed, limit time.Duration, lost func(error)) *Relay {
	return &Relay{dev: dev, features: dev.Features, limit: limit, lost: lost, rings: make([]relayRing, dev.Layout.Rings)}
}

// Attach gives the relay a worker, over a connection that the relay owns from
// then on, and brings it up to date.
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

// tell says everything to a new worker.
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
		// What a worker before it used may not have been told yet.
		if err := r.back.setCall(i, ring.fds.call, ring.fds.err); err != nil {
			return err
		}
	}
	return nil
}

// base is the next entry of a ring that nobody runs: of a split one its used index. Where guest
// memory cannot be read it is what is known.
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

// read reads guest memory by its file, which waits for nobody: see guestmem.Check.
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

// Detach takes the worker away.
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

// failed takes a worker away that did not do as it was told: it is gone, or
// will be soon, and what it missed the next one hears.
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

// SetMemory implements Device. The worker is told as the relay was: one region
// more, one less, or a whole table.
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
	if errors.Is(err, errDeclined) { // the front end is to hear of it, and the worker's log says why
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
	anew := r.features != st.Features&^FeatureProtocol // a driver that begins again may take others
	r.features = st.Features &^ FeatureProtocol
	r.rings[i] = relayRing{running: true, packed: packed, state: st.Vrings[i], used: used, fds: ringFDs{kick, call, errfd}}
	if r.back == nil {
		return nil
	}
	if anew {
		err = r.back.setFeatures(r.features)
	}
	if err == nil {
		err = r.back.start(i, &r.rings[i].state, r.rings[i].fds, packed)
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
	if r.back != nil {
		base, err := r.back.stop(i)
		if err == nil {
			return base
		}
		r.failed(err)
	}
	return r.base(i)
}

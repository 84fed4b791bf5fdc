package vhostuser

import (
	"net"
	"slices"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues"
)

// Relay is a Device that hands the conversation on to another back end, the
// worker, to which it is the front end. A worker may go at any time and be
// replaced by another: the Relay keeps what the worker has to be told, and what
// the real front end asks meanwhile it answers itself.
//
//	QEMU ──── Serve ──► Relay ──── frontend ──► Serve ──► the rings' Device
//	     conversation           conversation           (another process)
//
// A ring without worker stands still, and its used index, in guest memory, says
// where the next worker goes on: a vring.Queue completes chains in order.
type Relay struct {
	features uint64
	config   func(off uint32, b []byte) bool
	limit    time.Duration
	lost     func(error)

	mu    sync.Mutex
	maps  []*Mapping
	rings [Queues]relayRing
	back  *frontend // nil: no worker
}

// relayRing is a ring that runs, or would if there were a worker.
type relayRing struct {
	running bool
	state   Vring
	used    uint64 // guest-physical address of the used ring
	fds     ringFDs
}

// NewRelay returns a relay without worker for a device with these features and
// this configuration space (Device.Config). A worker has limit for one answer;
// one that gives none, or another than it should, is taken away and lost is told
// why. lost must not call the relay.
func NewRelay(features uint64, config func(off uint32, b []byte) bool, limit time.Duration, lost func(error)) *Relay {
	return &Relay{features: features, config: config, limit: limit, lost: lost}
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
	if err := r.back.begin(r.features); err != nil {
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
		ring.state.Base = r.resume(ring)
		if err := r.back.start(i, &ring.state, ring.fds); err != nil {
			return err
		}
		// What a worker before it used may not have been told yet.
		if err := r.back.setCall(i, ring.fds.call, ring.fds.err); err != nil {
			return err
		}
	}
	return nil
}

// resume is the index of the next entry of a ring that nobody runs. Where guest
// memory cannot be read it is what is known.
func (r *Relay) resume(ring *relayRing) uint16 {
	regions := make([]queues.Region, 0, len(r.maps))
	for _, m := range r.maps {
		regions = append(regions, queues.Region{Addr: m.GPA, Mem: m.Mem})
	}
	word, err := queues.NewMemory(regions).Load32(ring.used)
	if err != nil {
		return ring.state.Base
	}
	return uint16(word >> 16)
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
func (r *Relay) Features() uint64 { return r.features }

// Config implements Device.
func (r *Relay) Config(off uint32, b []byte) bool { return r.config(off, b) }

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
	if err := r.updateMemory(old, maps); err != nil {
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
	r.rings[i] = relayRing{running: true, state: st.Vrings[i], used: used, fds: ringFDs{kick, call, errfd}}
	if r.back == nil {
		return nil
	}
	if err := r.back.start(i, &r.rings[i].state, r.rings[i].fds); err != nil {
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
func (r *Relay) StopVring(i int) (base uint16) {
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
	return r.resume(ring)
}

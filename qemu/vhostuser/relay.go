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
	Features uint64                                                             // offered
	Config   func(off uint32, b []byte) bool                                    // Device.Config; nil: there is no configuration space
	Resume   func(mem []queues.Region, ring StoppedRing) (base uint32, ok bool) // where the next worker goes on; false: not known
	Begin    func(ring int, base uint32)                                        // a ring begins, whatever was before; nil: nobody has to know
}

// StoppedRing is a ring that a worker ran which is gone.
type StoppedRing struct {
	Index  int
	Packed bool
	Num    uint16
	Desc   uint64 // guest-physical addresses
	Used   uint64
}

// relayRing is a ring that runs, or would if there were a worker.
type relayRing struct {
	running bool
	state   Vring
	at      StoppedRing // if it were one
	fds     ringFDs
}

// NewRelay returns a relay without worker for a device. A worker has limit for one answer; one that
// gives none, or another than it should, is taken away and lost is told why. lost must not call the
// relay.
func NewRelay(dev Relayed, limit time.Duration, lost func(error)) *Relay {
	return &Relay{dev: dev, features: dev.Features, limit: limit, lost: lost, rings: make([]relayRing, dev.Layout.Rings)}
}

// ResumeSplit is a Relayed.Resume for split rings whose chains are completed in order: they go on
// at their used index.
func ResumeSplit(mem []queues.Region, ring StoppedRing) (base uint32, ok bool) {
	word, err := queues.NewMemory(mem).Load32(ring.Used)
	return word >> 16, err == nil
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
func (r *Relay) resume(ring *relayRing) uint32 {
	regions := make([]queues.Region, 0, len(r.maps))
	for _, m := range r.maps {
		regions = append(regions, queues.Region{Addr: m.GPA, Mem: m.Mem})
	}
	if base, ok := r.dev.Resume(regions, ring.at); ok {
		return base
	}
	return ring.state.Base
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
			if at, err := stopped(st, i); err == nil {
				ring.at = at
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
	at, err := stopped(st, i)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dev.Begin != nil {
		r.dev.Begin(i, st.Vrings[i].Base)
	}
	anew := r.features != st.Features&^FeatureProtocol // a driver that begins again may take others
	r.features = st.Features &^ FeatureProtocol
	r.rings[i] = relayRing{running: true, state: st.Vrings[i], at: at, fds: ringFDs{kick, call, errfd}}
	if r.back == nil {
		return nil
	}
	if anew {
		err = r.back.setFeatures(r.features)
	}
	if err == nil {
		err = r.back.start(i, &r.rings[i].state, r.rings[i].fds)
	}
	if err != nil {
		r.failed(err)
	}
	return nil
}

func stopped(st *State, i int) (StoppedRing, error) {
	desc, _, used, err := st.RingGPA(i)
	return StoppedRing{Index: i, Packed: st.Packed(), Num: st.Vrings[i].Num, Desc: desc, Used: used}, err
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
	return r.resume(ring)
}

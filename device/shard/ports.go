package shard

import (
	"iter"
	"maps"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
)

// Ports gives access to the ports of a shard's functions, for the code that creates and serves
// their devices: that is I/O, which the shard does not do. It belongs to the shard's thread.
type Ports struct{ s *Shard }

// Ports returns the ports of the shard's functions.
func (s *Shard) Ports() Ports { return Ports{s} }

// All returns all ports.
func (p Ports) All() iter.Seq[*Port] { return p.s.plain.ports.all() }

// Len returns the number of ports.
func (p Ports) Len() int { return p.s.plain.ports.len() }

// Post makes the shard's thread call f soon. It returns false once the thread has ended.
func (p Ports) Post(f func()) bool { return p.s.inbox.Post(posted(f)) }

type posted func()

// Drain implements inbox.Source.
func (f posted) Drain(falcon.Time) { f() }

// Sync applies the settings of functions to all ports.
func (p Ports) Sync() { p.s.plain.syncAll() }

// Busy reports whether frames of ports are still being sealed: no further ones may be read.
func (p Ports) Busy() bool { return p.s.plain.gw.Busy() }

// Take gives the shard frames of ports for its next Step. It may be called with frames only when
// Busy is false. Their memory belongs to the shard while it is Busy with them.
func (p Ports) Take(in []gateway.PortInput) { p.s.fromPorts = in }

// Deliver gives the ports the frames that wait for them.
func (p Ports) Deliver() { p.s.plain.gw.Deliver(p.s.delivered) }

// Patient reports whether the last frame in the uplink's queue is a port's.
func (p Ports) Patient() bool { return p.s.tx.Patient }

// Lost takes a port whose device is gone out of service.
func (p Ports) Lost(now falcon.Time, port *Port) {
	plain := &p.s.plain
	port.Lost = true
	plain.mark(port.ID)
	plain.sync(port)
}

// Change removes the ports that do not match their functions' settings, after passing each to gone,
// and returns those that are missing. It looks at functions that were changed since the last call,
// and at those whose port could not be created.
func (p Ports) Change(gone func(*Port)) (come []*Port) {
	plain := &p.s.plain
	for _, id := range slices.Sorted(maps.Keys(plain.unfit)) {
		is, want := plain.byID[id], plain.funcs.settings(id).Port
		fits := is != nil && !is.Lost && is.Port != nil && want != nil && reflect.DeepEqual(is.Config, want)
		if is != nil && !fits {
			gone(is)
			plain.leave(is)
		}
		if want == nil || fits {
			delete(plain.unfit, id)
			continue
		}
		come = append(come, &Port{ID: id, Config: want})
	}
	return come
}

// Add adds a port to the shard. add adds it to its device; if that fails, remove undoes it.
func (p Ports) Add(port *Port, add func() error, remove func()) (err error) {
	plain := &p.s.plain
	plain.join(port)
	if err = add(); err == nil {
		plain.sync(port)
		plain.funcs.ported(port.ID)
		delete(plain.unfit, port.ID)
		return nil
	}
	remove()
	plain.leave(port)
	return err
}

package shard

import (
	"iter"
	"maps"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
)

// Ports are the ports of a shard's functions for whoever makes and serves their devices, which is
// I/O and none of the shard's. They belong to the shard's thread.
type Ports struct{ s *Shard }

// Ports returns the ports of the shard's functions.
func (s *Shard) Ports() Ports { return Ports{s} }

// All are those that there are.
func (p Ports) All() iter.Seq[*Port] { return p.s.plain.ports.all() }

// Len is how many there are.
func (p Ports) Len() int { return p.s.plain.ports.len() }

// Post has f called on the shard's thread, soon. It reports false once that has ended.
func (p Ports) Post(f func()) bool { return p.s.inbox.Post(posted(f)) }

type posted func()

// Drain implements inbox.Source.
func (f posted) Drain(*Shard, falcon.Time) { f() }

// Sync makes the ports follow what their functions are set to.
func (p Ports) Sync() { p.s.plain.syncAll() }

// Busy reports whether frames of ports are being sealed still: none are to be read.
func (p Ports) Busy() bool { return p.s.plain.gw.Busy() }

// Take gives the shard frames of ports for its next Step. There may be some only when it is not
// Busy with those before, and their memory is the shard's until then.
func (p Ports) Take(in []gateway.PortInput) { p.s.fromPorts = in }

// Deliver gives ports what there is for them.
func (p Ports) Deliver() { p.s.plain.gw.Deliver(p.s.delivered) }

// Patient reports whether the last frame in the uplink's queue is a port's.
func (p Ports) Patient() bool { return p.s.tx.Patient }

// Lost takes out a port whose device is gone.
func (p Ports) Lost(now falcon.Time, port *Port) {
	plain := &p.s.plain
	port.Lost = true
	plain.mark(port.ID)
	plain.sync(port)
}

// Change takes out the ports that are not as functions are set to have them, which it gives to
// gone, and returns those that are missing. It looks at functions that were set since, and at those
// whose port could not be had.
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

// Add makes the shard know a port. add gives it its device; when that or anything else fails,
// remove takes it back.
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

package shard

import (
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
func (p Ports) All() []*Port { return p.s.plain.ports }

// Post has f called on the shard's thread, soon. It reports false once that has ended.
func (p Ports) Post(f func()) bool { return p.s.inbox.Post(posted(f)) }

type posted func()

// Drain implements inbox.Source.
func (f posted) Drain(*Shard, falcon.Time) { f() }

// Sync makes the ports follow what their functions are set to.
func (p Ports) Sync() { p.s.syncPorts() }

// Busy reports whether frames of ports are being sealed still: none are to be read.
func (p Ports) Busy() bool { return p.s.plain.gw.Busy() }

// Deliver gives ports what there is for them.
func (p Ports) Deliver() { p.s.plain.gw.Deliver(p.s.plain.delivered) }

// Patient reports whether the last frame in the uplink's queue is a port's.
func (p Ports) Patient() bool { return p.s.tx.Patient }

// delivered has captures see what a port was given.
func (s *Shard) delivered(f *gateway.PortFrame) { s.capture.toPort(s.now, f) }

// Lost takes out a port whose device is gone.
func (p Ports) Lost(now falcon.Time, port *Port) {
	s := p.s
	port.Lost = true
	s.plain.unfit[port.ID] = true
	s.syncPort(port)
}

// Change takes out the ports that are not as functions are set to have them, which it gives to gone,
// and returns those that are missing. It looks at functions that were set since, and at those whose
// port could not be had.
func (p Ports) Change(gone func(*Port)) (come []*Port) {
	s := p.s
	for _, id := range slices.Sorted(maps.Keys(s.plain.unfit)) {
		is, want := s.plain.byID[id], s.funcs.settings(id).Port
		fits := is != nil && !is.Lost && is.Port != nil && want != nil && reflect.DeepEqual(is.Config, want)
		if is != nil && !fits {
			gone(is)
			s.leavePort(is)
		}
		if want == nil || fits {
			delete(s.plain.unfit, id)
			continue
		}
		come = append(come, &Port{ID: id, Config: want})
	}
	return come
}

// Add makes the shard know a port. add gives it its device; when that or anything else fails, remove
// takes it back.
func (p Ports) Add(port *Port, add func() error, remove func()) (err error) {
	s := p.s
	s.plain.join(port)
	if err = add(); err == nil {
		s.syncPort(port)
		delete(s.plain.unfit, port.ID)
		return nil
	}
	remove()
	s.leavePort(port)
	return err
}

package shard

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// View shows the shard to the NIC's API, on the shard's thread. It implements controller.View.
type View struct{ s *Shard }

// View returns a view of the shard. It may be used on the shard's thread only.
func (s *Shard) View() View { return View{s} }

// Index returns the number of the shard.
func (v View) Index() int { return v.s.index }

// Present implements controller.View.
func (v View) Present() (ids []pfvf.ID) {
	for f := range v.s.funcs.there.all() {
		ids = append(ids, f.ID)
	}
	return ids
}

// NewGuests returns the functions that were added or changed since the last call, each with the CID
// of its guest; 0: it has none, or the function is disabled.
func (v View) NewGuests() map[pfvf.ID]uint32 {
	guests := map[pfvf.ID]uint32{}
	for id := range v.s.funcs.changed {
		guests[id] = 0
		if f := v.s.funcs.byID[id]; f != nil && f.cfg.Guest != nil && *f.cfg.Enabled {
			guests[id] = f.cfg.Guest.CID
		}
	}
	clear(v.s.funcs.changed)
	return guests
}

// Absent implements controller.View.
func (v View) Absent() []pfvf.ID { return slices.Collect(maps.Keys(v.s.funcs.absent)) }

// Find implements controller.View.
func (v View) Find(id pfvf.ID) error {
	switch fs := v.s.funcs; {
	case fs.byID[id] != nil:
		return nil
	case fs.possible(id):
		return fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
	default:
		return because(v.s.core.Find(id))
	}
}

// Settings implements controller.View.
func (v View) Settings(id pfvf.ID) config.Function { return v.s.funcs.settings(id) }

// QPs implements controller.View.
func (v View) QPs(of pfvf.ID) (list []control.QP) {
	f := v.s.funcs.byID[of]
	if f.Verbs() == nil {
		return nil
	}
	f.Verbs().EachQP(func(q *verbs.QPInfo) {
		v := control.QP{
			Function: f.ID.String(), QPN: q.Number, Type: q.Type.String(), State: q.State.String(), PeerQPN: q.Peer,
			SendCQ: q.SendCQ, RecvCQ: q.RecvCQ, Posted: q.Posted, InFlight: q.InFlight, Packets: q.Pushes + q.Pulls, Reads: q.Reads,
			PathMTU: q.PathMTU, RetryCnt: q.RetryCnt, RNRRetry: q.RNRRetry, MaxAtomic: q.MaxRdAtomic,
		}
		if q.PeerGID != ([16]byte{}) {
			v.Peer = netip.AddrFrom16(q.PeerGID).Unmap().String()
		}
		switch {
		case q.CreditWait:
			v.Waits = "credit"
		case q.Rate:
			v.Waits = "rate"
		}
		list = append(list, v)
	})
	return list
}

// Queues implements controller.View.
func (v View) Queues(of pfvf.ID) (list []control.Queue) {
	f := v.s.funcs.byID[of]
	if f.Verbs() == nil {
		return nil
	}
	id := f.ID.String()
	list = append(list, adminQueue(f))
	f.Verbs().EachQueue(func(q *verbs.QueueInfo) {
		v := control.Queue{
			Function: id, Kind: string(q.Kind), Number: q.Number, Entries: q.Entries,
			Producer: q.Producer, Consumer: q.Consumer, Level: q.Producer - q.Consumer,
		}
		switch {
		case q.Overflowed:
			v.Note = "overflowed"
		case q.Polled:
			v.Note = "polled"
		case q.Armed:
			v.Note = "armed"
		}
		list = append(list, v)
	})
	return list
}

func adminQueue(f *function) control.Queue {
	v := control.Queue{Function: f.ID.String(), Kind: "admin-sq"}
	v.Entries, v.Producer, v.Consumer, v.Level = f.AdminQueue()
	return v
}

// CreditRoots implements controller.View.
func (v View) CreditRoots() []control.CreditNode {
	host, c := v.s.funcs.host, &v.s.cfg.NIC
	return []control.CreditNode{creditNode("nic", c.Name, host.Parent()), creditNode("host", fmt.Sprintf("h%d", c.Host), host)}
}

// Credits implements controller.View: it lists a function and its connections.
func (v View) Credits(of pfvf.ID) (list []control.CreditNode) {
	f := v.s.funcs.byID[of]
	list = append(list, creditNode("function", f.ID.String(), f.Credits))
	for _, id := range f.conns.IDs() {
		if c := v.s.table.ByID(id); c != nil && c.Credits != nil {
			list = append(list, creditNode("connection", fmt.Sprintf("%s/%d", f.ID, id), c.Credits))
		}
	}
	return list
}

func creditNode(level, name string, n *credit.Node) control.CreditNode {
	return control.CreditNode{
		Level: level, Name: name, Limit: counts(n.Limit()), Guarantee: counts(n.Guaranteed()), InUse: counts(n.InUse()), Charged: counts(n.Charged()),
		Refused: n.Refusals(), Underflows: n.Underflows(),
	}
}

// counts returns the values that are neither 0 nor unlimited, by name.
func counts(c credit.Cost) map[string]uint32 {
	m := map[string]uint32{}
	for i, v := range c {
		if v != 0 && v != credit.Unlimited {
			m[credit.Counter(i).String()] = v
		}
	}
	return m
}

// Keys implements controller.View. No answer holds a key.
func (v View) Keys() (list []control.Key) {
	for _, k := range v.s.txSAs.List() {
		list = append(list, control.Key{
			Direction: "tx", Peer: k.Use.Peer, Tenant: k.Use.Tenant, Class: k.Use.Class.String(),
			SPI: k.SPI, Packets: k.Packets, RekeyDue: k.RekeyDue,
		})
	}
	return list
}

// StartTrace implements controller.View.
func (v View) StartTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error) {
	return v.s.funcs.startTrace(id, qpn)
}

// EndTrace implements controller.View.
func (v View) EndTrace(id pfvf.ID) { v.s.funcs.setTrace(id, nil) }

// Tunnels implements controller.View.
func (v View) Tunnels() (list []control.Route) {
	v.s.plain.gw.Tunnels.Each(func(t *gateway.Tunnel) {
		list = append(list, control.Route{Kind: "peer", Peer: t.Peer, Tenant: t.Tenant, Sealed: t.Sealed()})
	})
	return list
}

package shard

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// View shows a shard to operators, and changes it for them, by subject (controller.View). It is used
// on the shard's thread only.
type View struct {
	Functions FunctionView
	Objects   ObjectView
	Faults    FaultView
	Captures  CaptureView
	Traces    TraceView
	Peers     PeerView
}

// View returns a view of the shard.
func (s *Shard) View() View {
	return View{FunctionView{s.funcs}, ObjectView{s.funcs}, FaultView{s.funcs}, CaptureView{s}, TraceView{s.funcs}, PeerView{s}}
}

// FunctionView shows the functions. It implements controller.FunctionView.
type FunctionView struct{ fs *functionSet }

// Present implements controller.FunctionView.
func (v FunctionView) Present() (ids []pfvf.ID) {
	for f := range v.fs.members.all() {
		ids = append(ids, f.ID)
	}
	return ids
}

// NewGuests returns the functions that were added or changed since the last call, each with the CID
// of its guest; 0: it has none, or the function is disabled.
func (v FunctionView) NewGuests() map[pfvf.ID]uint32 {
	guests := map[pfvf.ID]uint32{}
	for id := range v.fs.changed {
		guests[id] = 0
		if f := v.fs.members.get(id); f != nil && f.cfg.Guest != nil && *f.cfg.Enabled {
			guests[id] = f.cfg.Guest.CID
		}
	}
	clear(v.fs.changed)
	return guests
}

// Absent implements controller.FunctionView.
func (v FunctionView) Absent() []pfvf.ID { return slices.Collect(maps.Keys(v.fs.absent)) }

// Find implements controller.FunctionView.
func (v FunctionView) Find(id pfvf.ID) error {
	switch {
	case v.fs.members.get(id) != nil:
		return nil
	case v.fs.possible(id):
		return fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
	default:
		return reasonOf(v.fs.core.Find(id))
	}
}

// Settings returns the settings of a function, whether it exists or not.
func (v FunctionView) Settings(id pfvf.ID) config.Function { return v.fs.settings(id) }

// Describe implements controller.FunctionView.
func (view FunctionView) Describe(id pfvf.ID) control.Function {
	fs := view.fs
	c := fs.settings(id)
	v := control.Function{
		ID: id.String(), Number: uint32(id), Type: "vf", State: abi.StateDisabled.String(),
		Tenant: c.Tenant, MAC: c.MAC.String(), Guest: guestName(&c), RDMA: cmp.Or(c.Transport, fs.cfg.RDMA.Transport),
		Link: c.Link.String(), MaxTxRate: c.MaxTxRate, Weight: max(c.Weight, 1), Trust: c.Trust, SpoofCheck: *c.SpoofCheck,
	}
	for k := range abi.NumObjects {
		*v.MayHave(k) = *c.Limits.Quotas.Of(k)
	}
	if c.Address.IsValid() {
		v.Addr = c.Address.String()
	}
	if p := c.Port; p != nil {
		v.Port = &control.Port{Name: p.Name, Type: p.Type, Socket: p.Socket, Listen: p.Listen, Queues: p.Queues, Mode: p.Mode, Bridge: p.Bridge, Netns: p.Netns, MTU: p.MTU, Up: fs.plain.gw.Up(uint32(id))}
		if port := fs.plain.ports.get(id); port != nil && port.Device != nil {
			v.Port.Fault = port.Device.Fault()
		}
	}
	if w := c.DMAWindow; w != nil {
		v.DMAWindow = fmt.Sprintf("%s+%s", w.Address, w.Size)
	}
	f := fs.members.get(id)
	if f == nil {
		return v
	}
	v.State, v.LinkUp, v.Resets = f.Lifecycle.State().String(), f.LinkUp, f.Lifecycle.Resets()
	if !id.IsVF() {
		v.Type = "pf"
		v.TotalVFs, v.NumVFs = fs.vfs[id.PF()], int(f.Registers().Value(abi.RegNumVF))
	}
	if code, reason := f.Lifecycle.Fault(); code != abi.FaultNone {
		v.Fault = code.String() + ": " + reason
	}
	if d := f.Driver(); d != nil {
		v.Attached = d.Peer.Transport
	}
	if in := f.Verbs(); in != nil {
		n, st := in.Counts(), in.Stats()
		for k := range abi.NumObjects {
			*v.Has(k) = n[k]
		}
		v.TxBytes, v.RxBytes, v.RateWaits = st.BytesTx, st.BytesRx, st.RateWaits
	}
	return v
}

// guestName returns the guest that may drive a function; "": none.
func guestName(f *config.Function) string {
	g := f.Guest
	switch {
	case f.Service != "":
		return "service " + f.Service
	case g == nil:
		return ""
	case g.Unix != "":
		return "unix " + g.Unix
	}
	return fmt.Sprintf("cid %d", g.CID)
}

// ObjectView shows what functions have. It implements controller.ObjectView.
type ObjectView struct{ fs *functionSet }

// Connections implements controller.ObjectView.
func (v ObjectView) Connections(now falcon.Time, id pfvf.ID) (list []control.Connection) {
	f := v.fs.members.get(id)
	if f == nil || f.Verbs() == nil {
		return nil
	}
	p := networkPortOf(f.Verbs())
	if p == nil {
		return nil
	}
	for _, c := range p.Conns() {
		list = append(list, control.Connection{
			Wire: p.in.Kind.Name, Function: id.String(), PeerAddress: c.At.String(), Tenant: f.conns.Tenant, State: c.State, QPN: c.QPN, PeerQPN: c.Peer,
			MTU: c.MTU, Retransmits: c.Again, AgeMS: (now - c.Opened) / 1e6, Cwnd: float64(c.Window), RTTNS: c.Trip,
		})
	}
	return list
}

// QPs implements controller.ObjectView.
func (v ObjectView) QPs(of pfvf.ID) (list []control.QP) {
	f := v.fs.members.get(of)
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

// Queues implements controller.ObjectView.
func (v ObjectView) Queues(of pfvf.ID) (list []control.Queue) {
	f := v.fs.members.get(of)
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

func adminQueue(f *member) control.Queue {
	v := control.Queue{Function: f.ID.String(), Kind: "admin-sq"}
	v.Entries, v.Producer, v.Consumer, v.Level = f.AdminQueue()
	return v
}

// CreditRoots implements controller.ObjectView.
func (v ObjectView) CreditRoots() []control.CreditNode {
	host, c := v.fs.host, &v.fs.cfg.NIC
	return []control.CreditNode{creditNode("nic", c.Name, host.Parent()), creditNode("host", fmt.Sprintf("h%d", c.Host), host)}
}

// Credits implements controller.ObjectView: it lists a function and its connections.
func (v ObjectView) Credits(of pfvf.ID) (list []control.CreditNode) {
	f := v.fs.members.get(of)
	list = append(list, creditNode("function", f.ID.String(), f.Credits))
	for _, id := range f.conns.IDs() {
		if c := v.fs.falcon.table.ByID(id); c != nil && c.Credits != nil {
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

// Violations implements controller.ObjectView.
func (view ObjectView) Violations(now falcon.Time, of pfvf.ID) (list []control.Violation) {
	for _, v := range view.fs.members.get(of).Violations().All() {
		is := control.Violation{
			Function: of.String(), Ring: v.Ring.String(), Queue: v.Queue, Index: v.Index,
			Bytes: hex.EncodeToString(v.Bytes[:v.Length]), Count: v.Count, AgeMS: (now - v.At) / 1e6,
		}
		if v.Clause != 0 {
			c := abi.Clause(v.Clause)
			is.Clause, is.What = c.String(), c.Doc()
		} else {
			is.What = fmt.Sprintf("WQE %d: %s (%s)", v.Index, v.Why, v.Status)
		}
		list = append(list, is)
	}
	return list
}

// Noted returns how often a violation of a function was recorded. Violations takes time; while this number
// stays the same, there is nothing new in its list.
func (view ObjectView) Noted(of pfvf.ID) uint64 { return view.fs.members.get(of).Violations().Noted() }

// ClearViolations implements controller.ObjectView.
func (view ObjectView) ClearViolations(of pfvf.ID) {
	view.fs.operated(change{ID: of, ClearViolations: true})
	view.fs.members.get(of).Violations().Clear()
}

// PeerView shows what the shard knows of other NICs. It implements controller.PeerView.
type PeerView struct{ s *Shard }

// Paths implements controller.PeerView.
func (view PeerView) Paths(list []control.Connection) {
	for i := range list {
		v := &list[i]
		if o := view.s.falcon.table.ByID(v.ID); o != nil && o.Conn != nil { // keys may have been replaced since
			v.TxSPI, v.RxSPI = sessionOf(o).SPIs()
			describePath(v, o.Conn.Info())
		}
	}
}

// describePath adds the transport's measurements of a connection's path.
func describePath(v *control.Connection, i falcon.ConnInfo) {
	v.Retransmits = i.Retransmits
	v.Cwnd, v.RTTNS, v.DelayNS, v.DelayTargetNS = i.Fcwnd, i.RTT, i.Delay, i.DelayTarget
	if i.LongPath {
		v.Note = conn.LongPathNote(i)
	}
}

// Keys implements controller.PeerView. No answer holds a key.
func (v PeerView) Keys() (list []control.Key) {
	for _, k := range v.s.txSAs.List() {
		list = append(list, control.Key{
			Direction: "tx", PeerName: v.s.peerName(k.Use.Peer), Tenant: k.Use.Tenant, Class: k.Use.Class.String(),
			SPI: k.SPI, Packets: k.Packets, RekeyDue: k.RekeyDue,
		})
	}
	return list
}

// Tunnels implements controller.PeerView.
func (v PeerView) Tunnels() (list []control.Route) {
	v.s.plain.gw.Tunnels.Each(func(t *gateway.Tunnel) {
		list = append(list, control.Route{Kind: "peer", PeerName: t.Name, Tenant: t.Tenant, Sealed: t.Sealed()})
	})
	return list
}

// OtherModes implements controller.PeerView.
func (v PeerView) OtherModes(now falcon.Time) (names []string) {
	for _, p := range v.s.peers {
		if p.otherMode != 0 && now-p.otherMode < otherModeEvery {
			names = append(names, p.name)
		}
	}
	return names
}

// Counters returns the counters of the shard and its parts. It is called on the shard's thread.
func (s *Shard) Counters() control.Counters {
	v := control.Counters{}
	c := counters.Shard{
		Steps: s.counters.steps, RxPackets: s.counters.rxPackets, RxBytes: s.counters.rxBytes, TxPackets: s.counters.txPackets, TxBytes: s.counters.txBytes,
		Local: s.counters.localPackets, LocalBytes: s.counters.localBytes, Steered: s.counters.steered,
		Doorbells: s.guests.Doorbells, AdminCommands: s.guests.Commands, BellsMuted: s.guests.Bells.Muted, Interrupts: s.guests.Interrupts(), TxSAs: uint64(s.txSAs.Len()),
	}
	falcon, rdma := s.falcon.engine.Stats(), s.rdma.Stats()
	counters.OfShard.Add(v, &c)
	counters.AddFalcon(v, falcon)
	counters.OfRDMA.Add(v, &rdma)
	for _, n := range s.networks.all {
		ports := n.Stats()
		counters.OfNetwork[n.Kind.Name].Add(v, &ports)
	}
	counters.AddUnderlay(v, s.uplink.underlay.Stats()[:])
	s.plain.counts(v)
	for r, n := range s.drops {
		v["drop."+dropReason(r).String()] = n
	}
	v["drop.async_event"] = s.counters.refusedBehindDriver // the name from when it was one of the drops
	return v
}

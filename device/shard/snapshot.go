package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// OtherModes implements controller.View.
func (v View) OtherModes(now falcon.Time) (hosts []uint8) {
	for host, p := range v.s.peers {
		if p.otherMode != 0 && now-p.otherMode < otherModeEvery {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// Describe implements controller.View.
func (view View) Describe(id pfvf.ID) control.Function {
	s := view.s
	c := s.funcs.settings(id)
	v := control.Function{
		ID: id.String(), Number: uint32(id), Type: "vf", State: abi.StateDisabled.String(),
		Tenant: c.Tenant, MAC: c.MAC.String(), Guest: guestName(c.Guest),
		Link: c.Link.String(), MaxTxRate: c.MaxTxRate, Weight: max(c.Weight, 1), Trust: c.Trust, SpoofCheck: *c.SpoofCheck,
	}
	for k := range abi.NumObjects {
		*v.MayHave(k) = *c.Limits.Quotas.Of(k)
	}
	if c.Address.IsValid() {
		v.Addr = c.Address.String()
	}
	if p := c.Port; p != nil {
		v.Port = &control.Port{Name: p.Name, Type: p.Type, Socket: p.Socket, Listen: p.Listen, Queues: p.Queues, Mode: p.Mode, Bridge: p.Bridge, Netns: p.Netns, MTU: p.MTU, Up: s.plain.gw.Up(uint32(id))}
		if port := s.plain.byID[id]; port != nil && port.Port != nil {
			v.Port.Fault = port.Port.Fault()
		}
	}
	if w := c.DMAWindow; w != nil {
		v.DMAWindow = fmt.Sprintf("%s+%s", w.Address, w.Size)
	}
	f := s.funcs.byID[id]
	if f == nil {
		return v
	}
	v.State, v.LinkUp, v.Resets = f.Lifecycle.State().String(), f.LinkUp, f.Lifecycle.Resets()
	if !id.IsVF() {
		v.Type = "pf"
		v.TotalVFs, v.NumVFs = s.funcs.vfs[id.PF()], int(f.Registers().Value(abi.RegNumVF))
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
func guestName(g *config.Guest) string {
	switch {
	case g == nil:
		return ""
	case g.Unix != "":
		return "unix " + g.Unix
	}
	return fmt.Sprintf("cid %d", g.CID)
}

// Paths implements controller.View.
func (view View) Paths(list []control.Connection) {
	for i := range list {
		v := &list[i]
		if o := view.s.table.ByID(v.ID); o != nil && o.Conn != nil { // keys may have been replaced since
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

// Counters implements controller.View: it returns the shard's counters and those of its parts.
func (view View) Counters() control.Counters {
	s := view.s
	v := control.Counters{}
	c := counters.Shard{
		Steps: s.counters.steps, RxPackets: s.counters.rxPackets, RxBytes: s.counters.rxBytes, TxPackets: s.counters.txPackets, TxBytes: s.counters.txBytes,
		Inside: s.counters.insidePackets, InsideBytes: s.counters.insideBytes, Steered: s.counters.steered,
		Doorbells: s.guests.Doorbells, AdminCommands: s.guests.Commands, BellsMuted: s.guests.Bells.Muted, Interrupts: s.guests.Interrupts(), TxSAs: uint64(s.txSAs.Len()),
	}
	falcon, rdma, roce := s.falcon.Stats(), s.rdma.Stats(), s.roce.engine.Stats()
	counters.OfShard.Add(v, &c)
	counters.AddFalcon(v, falcon)
	counters.OfRDMA.Add(v, &rdma)
	counters.OfRoCE.Add(v, &roce)
	counters.AddUnderlay(v, s.underlay.Stats()[:])
	s.plain.counts(v)
	for r, n := range s.drops {
		v["drop."+dropReason(r).String()] = n
	}
	return v
}

// Connections implements controller.View.
func (view View) Connections(now falcon.Time, id pfvf.ID) (list []control.Connection) {
	f := view.s.funcs.byID[id]
	if f == nil || f.Verbs() == nil || f.Verbs().RoCE() == nil {
		return nil
	}
	for _, c := range f.Verbs().RoCE().Conns() {
		list = append(list, control.Connection{
			Wire: "roce", Function: id.String(), PeerAddress: c.At.String(), Tenant: f.conns.Tenant, State: c.State, QPN: c.QPN, PeerQPN: c.Peer,
			MTU: c.MTU, Retransmits: c.Again, AgeMS: (now - c.Opened) / 1e6, Cwnd: float64(c.Window), RTTNS: c.Trip,
		})
	}
	return list
}

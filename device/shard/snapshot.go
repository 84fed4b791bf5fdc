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

// Peers implements controller.View.
func (v View) Peers(now falcon.Time) (list []control.Peer) {
	for _, p := range v.s.cm.Peers() {
		known := v.s.peers[p.Host]
		c := control.Peer{
			Host: p.Host, Underlay: p.Underlay.String(), Identity: known.cfg.Identity, Tenants: p.Tenants,
			Up: p.Up, Functions: p.Offers, Connections: p.Connections,
		}
		if known.otherMode != 0 && now-known.otherMode < otherModeEvery {
			c.Note = "seals in another psp.mode"
		}
		list = append(list, c)
	}
	return list
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
		v.Port = &control.Port{Name: p.Name, Mode: p.Mode, Bridge: p.Bridge, Netns: p.Netns, MTU: p.MTU, Up: s.plain.gw.Up(uint32(id))}
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

// guestName says who may drive a function; "" is nobody.
func guestName(g *config.Guest) string {
	switch {
	case g == nil:
		return ""
	case g.Unix != "":
		return "unix " + g.Unix
	}
	return fmt.Sprintf("cid %d", g.CID)
}

// Connections implements controller.View: all, established or not.
func (view View) Connections(now falcon.Time) (list []control.Connection) {
	for _, c := range view.s.cm.Connections() {
		v := control.Connection{
			ID: c.ID, Function: pfvf.ID(c.Function).String(), PeerHost: c.Peer, Tenant: c.Tenant, State: c.State.String(),
			QPN: c.QPN, PeerQPN: c.PeerQPN, LocalCID: c.LocalCID, RemoteCID: c.RemoteCID, TxSPI: c.TxSPI, RxSPI: c.RxSPI,
			MTU: c.MTU, AgeMS: (now - c.Created) / 1e6,
		}
		if o := view.s.table.ByID(c.ID); o != nil && o.Conn != nil { // keys may have been replaced since
			v.TxSPI, v.RxSPI = sessionOf(o).SPIs()
			describePath(&v, o.Conn.Info())
		}
		if c.PeerFunction != 0 {
			v.PeerFunction = pfvf.ID(c.PeerFunction).String()
		}
		list = append(list, v)
	}
	return list
}

// describePath says how the transport finds the path of a connection.
func describePath(v *control.Connection, i falcon.ConnInfo) {
	v.Retransmits = i.Retransmits
	v.Cwnd, v.RTTNS, v.DelayNS, v.DelayTargetNS = i.Fcwnd, i.RTT, i.Delay, i.DelayTarget
	if i.LongPath {
		v.Note = conn.LongPathNote(i)
	}
}

// RotateKeys implements controller.View.
func (view View) RotateKeys(now falcon.Time) (v control.Rotation, err error) {
	if err = view.s.keys.Rotate(now); err == nil {
		k := view.s.keys.Stats()
		v.Generation, v.Keys = k.Generation, k.Uses
	}
	return v, err
}

// Counters implements controller.View.
func (view View) Counters() control.Counters { return view.s.counts() }

// counts gathers the shard's counters and those of its rooms.
func (s *Shard) counts() control.Counters {
	v, keys := control.Counters{}, s.keys.Stats()
	c := counters.Shard{
		Steps: s.counters.steps, RxPackets: s.counters.rxPackets, RxBytes: s.counters.rxBytes, TxPackets: s.counters.txPackets, TxBytes: s.counters.txBytes,
		Inside: s.counters.insidePackets, InsideBytes: s.counters.insideBytes,
		Doorbells: s.guests.Doorbells, AdminCommands: s.guests.Commands, BellsMuted: s.guests.Bells.Muted, Interrupts: s.guests.Interrupts(), CIDsInUse: uint64(s.cm.CIDsInUse()),
	}
	psp := counters.PSP{RxSAs: uint64(keys.SPIs), TxSAs: uint64(s.txSAs.Len()), Rotations: keys.Rotations, RxSAsUnsettled: uint64(keys.Unsettled)}
	falcon, rdma, manager := s.falcon.Stats(), s.rdma.Stats(), s.cm.Stats()
	counters.OfShard.Add(v, &c)
	counters.OfPSP.Add(v, &psp)
	counters.AddFalcon(v, falcon)
	counters.OfRDMA.Add(v, &rdma)
	counters.OfCM.Add(v, &manager)
	counters.AddUnderlay(v, s.underlay.Stats()[:])
	s.plain.counts(v)
	for r, n := range s.drops {
		v["drop."+dropReason(r).String()] = n
	}
	return v
}

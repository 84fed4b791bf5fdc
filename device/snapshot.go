package device

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Peers implements controller.View.
func (v view) Peers(now falcon.Time) (list []control.Peer) {
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
func (view view) Describe(id pfvf.ID) control.Function {
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
		v.Port = &control.Port{Name: p.Name, Mode: p.Mode, Bridge: p.Bridge, Netns: p.Netns, MTU: p.MTU, Up: s.plain.up(id)}
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
func (view view) Connections(now falcon.Time) (list []control.Connection) {
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
func (view view) RotateKeys(now falcon.Time) (v control.Rotation, err error) {
	if err = view.s.keys.Rotate(now); err == nil {
		k := view.s.keys.Stats()
		v.Generation, v.Keys = k.Generation, k.Uses
	}
	return v, err
}

// Counters implements controller.View. The uplink belongs to the shard's thread.
func (view view) Counters() control.Counters {
	v, p, t := view.s.counts(), view.n.deps.Uplink.Stats(), view.n.thread
	v["uplink.rx_frames"], v["uplink.rx_bytes"], v["uplink.rx_dropped"] = p.RxFrames, p.RxBytes, p.RxDropped
	v["uplink.rx_superframes"], v["uplink.tx_superframes"] = p.RxSuperframes, p.TxSuperframes
	v["uplink.tx_frames"], v["uplink.tx_bytes"], v["uplink.tx_dropped"] = p.TxFrames, p.TxBytes, p.TxDropped
	countImpaired(v, "rx", t.Impaired(thread.RX))
	countImpaired(v, "tx", t.Impaired(thread.TX))
	v["drop.uplink_error"] = t.Errors()
	return v
}

// countRest adds the counters that are not a shard's.
func (n *NIC) countRest(v control.Counters) {
	if n.link != nil {
		l := n.link.Stats()
		v["cmlink.refused_identity"], v["cmlink.handshake_failed"], v["cmlink.down"] = l.RefusedIdentity, l.HandshakeFailed, l.Down
		v["cmlink.ousted"] = l.Ousted
		v["cmlink.messages_in"], v["cmlink.messages_out"] = l.MessagesIn, l.MessagesOut
	}
	if s := n.deps.Supervisor; s != nil {
		v["worker.starts"], v["worker.stuck"] = uint64(s.Starts), uint64(s.Stuck)
	}
	if n.deps.Capture != nil {
		v["capture.dropped"] = n.deps.Capture.Drops()
	}
	v["nic.warnings"] = uint64(len(n.warnings.List()))
}

// counts gathers the shard's counters and those of its rooms.
func (s *Shard) counts() control.Counters {
	c, keys := &s.counters, s.keys.Stats()
	v := control.Counters{
		"shard.steps": c.steps, "shard.rx_packets": c.rxPackets, "shard.rx_bytes": c.rxBytes,
		"shard.tx_packets": c.txPackets, "shard.tx_bytes": c.txBytes,
		"shard.doorbells": s.guests.Doorbells, "shard.admin_commands": s.guests.Commands, "shard.bells_muted": s.guests.Bells.Muted, "shard.interrupts": s.guests.Interrupts(),
		"shard.cids_in_use": uint64(s.cm.CIDsInUse()), "psp.rx_sas": uint64(keys.SPIs), "psp.tx_sas": uint64(s.txSAs.Len()),
		"psp.rotations": keys.Rotations, "psp.rx_sas_unsettled": uint64(keys.Unsettled),
	}
	for r, n := range s.drops {
		v["drop."+dropReason(r).String()] = n
	}
	s.plain.counts(v)
	for r, n := range s.underlay.Stats() {
		v["underlay."+counterName(underlay.Verdict(r).String())] = n
	}
	f := s.falcon.Stats()
	for r, n := range f.Drops {
		if r != 0 {
			v["falcon.drop_"+counterName(wire.Drop(r).String())] = n
		}
	}
	for code := range f.NackCodesSent {
		if name := counterName(wire.NackCode(code).String()); wire.NackCode(code).Valid() {
			v["falcon.nack_sent_"+name], v["falcon.nack_received_"+name] = f.NackCodesSent[code], f.NackCodesReceived[code]
		}
	}
	v["falcon.nack_received_reserved"] = f.NackCodesReceived[0]
	for code, n := range f.Completions {
		if name := falcon.Completion(code).Name(); name != "" {
			v["falcon.completion_"+counterName(name)] = n
		}
	}
	for name, n := range map[string]uint64{
		"acks_received": f.AcksReceived, "extended_acks_received": f.ExtendedAcksReceived, "resyncs_received": f.ResyncsReceived,
		"own_sent": f.OWNSent, "own_received": f.OWNReceived,
		"packets_received": f.PacketsReceived, "packets_sent": f.PacketsSent, "data_sent": f.DataSent, "ecn_marked": f.ECNMarked,
		"acks_sent": f.AcksSent, "extended_acks_sent": f.ExtendedAcksSent, "nacks_sent": f.NacksSent, "nacks_received": f.NacksReceived,
		"resyncs_sent": f.ResyncsSent, "timeout_retransmits": f.TimeoutRetransmits, "early_retransmits": f.EarlyRetransmits,
		"spurious_timeouts": f.SpuriousTimeouts, "spurious_early": f.SpuriousEarly, "answer_timeouts": f.AnswerTimeouts, "probes": f.Probes,
		"xoffs": f.Xoffs, "txn_timeouts": f.TxnTimeouts, "conns_failed": f.ConnsClosed[falcon.CloseResync], "conns_left_by_peer": f.ConnsClosed[falcon.ClosePeer],
		"conns_violated": f.ConnsClosed[falcon.CloseULP], "conns_without_keys": f.ConnsClosed[falcon.CloseKeys], "credit_errors": f.CreditErrors,
		"rue_events": f.RUEEvents, "rue_busy": f.RUEBusy, "rue_skipped": f.RUESkipped, "rejected": f.Rejected, "red_zone": f.RedZone, "evicted": f.Evicted, "reclaimed": f.Reclaimed,
		"fill_errors": f.FillErrors, "repaths": f.Repaths, "ignored_acks": f.IgnoredAcks, "conns": uint64(f.Conns), "tx_contexts": uint64(f.TxContexts), "rx_contexts": uint64(f.RxContexts), "rx_cells": uint64(f.RxCells),
	} {
		v["falcon."+name] = n
	}
	m := s.cm.Stats()
	m.Each(func(name string, n uint64) { v["cm."+name] = n })
	r := s.rdma.Stats()
	for name, n := range map[string]uint64{
		"posted": r.Posted, "completed": r.Completed, "flushed": r.Flushed, "errors": r.Errors,
		"pushes_tx": r.PushesTx, "pulls_tx": r.PullsTx, "bytes_tx": r.BytesTx, "pushes_rx": r.PushesRx, "pulls_rx": r.PullsRx, "bytes_rx": r.BytesRx,
		"rnr_tx": r.RNRTx, "rnr_rx": r.RNRRx, "pulls_deferred": r.PullsDeferred, "refused": r.Refused, "credit_waits": r.CreditWaits, "rate_waits": r.RateWaits, "qp_errors": r.QPErrors, "cq_overflows": r.CQOverflows,
		"datagrams_lost": r.DatagramsLost, "bad_qkeys": r.BadQKeys, "cid_mismatches": r.CIDMismatches,
	} {
		v["rdma."+name] = n
	}
	return v
}

// counterName makes a counter's name of a description.
func counterName(s string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(s))
}

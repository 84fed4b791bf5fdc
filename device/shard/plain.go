package shard

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// plainIP is a shard's part in the plain IP of its functions' ports: the gateway, and what the ports
// are set to.
//
//	port ▶ gateway ▶ cut ▶ seal ▶ underlay ▶ tx queue
//	frame ▶ underlay ▶ open ▶ gateway ▶ join ▶ port
type plainIP struct {
	gw    *gateway.Gateway
	ports []*Port
	byID  map[pfvf.ID]*Port
	unfit map[pfvf.ID]bool // functions whose port may not be as they are set
	first bool             // the ports fill the tx queue before the transport does

	delivered func(*gateway.PortFrame) // Shard.delivered, made once
}

// Port is a function's port as the shard knows it. It belongs to the shard's thread.
type Port struct {
	*gateway.Endpoint
	ID     pfvf.ID
	Config *config.Port
	Rate   *credit.Bucket // of the function; nil: it is disabled
	shown  capture.Port   // in captures
}

// join makes the gateway know a port.
func (p *plainIP) join(f *Port) {
	f.Endpoint = p.gw.AddEndpoint(f.Config.Name, uint32(f.ID), gatewayMAC(f.ID.Host(), f.ID.PF(), f.ID.VF()))
	f.Owner, f.shown = f, f.described()
	p.ports = append(slices.Clone(p.ports), f)
	p.byID[f.ID] = f
}

// leavePort makes the gateway, and all that send to it, forget a port.
func (s *Shard) leavePort(f *Port) {
	p := &s.plain
	p.gw.RemoveEndpoint(f.Endpoint)
	p.ports = slices.DeleteFunc(slices.Clone(p.ports), func(g *Port) bool { return g == f })
	if p.byID[f.ID] == f {
		delete(p.byID, f.ID)
		s.core.RemovePort(f.Function)
	}
}

// gatewayMAC is what the guest of a function's port sees of all other stations.
func gatewayMAC(host, pf uint8, vf uint16) gateway.MAC {
	m := config.FunctionMAC(host, pf, vf)
	m[2] = 0x4f
	return gateway.MAC(m)
}

// newPlainIP makes the gateway with the ports of the configuration.
func (s *Shard) newPlainIP() error {
	s.plain.delivered = s.delivered
	s.plain.byID, s.plain.unfit = map[pfvf.ID]*Port{}, map[pfvf.ID]bool{}
	s.plain.gw = gateway.New(uint8(s.index), s.core.Routes())
	s.plain.gw.Panicked = func(v any, frame []byte) { s.log.Panicked(s.now, "a packet of plain IP", v, frame) }
	for _, n := range s.cfg.AllFunctions() {
		if n.Port == nil || s.cfg.ShardOf(n.PF, n.VF) != s.index {
			continue
		}
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		s.plain.join(&Port{ID: id, Config: n.Port})
	}
	for _, f := range s.funcs.all { // they may be set to something else by now
		s.plain.unfit[f.ID] = true
	}
	for id := range s.funcs.shelf {
		s.plain.unfit[id] = true
	}
	return nil
}

// syncPorts makes all ports follow what their functions are set to.
func (s *Shard) syncPorts() {
	for _, p := range s.plain.ports {
		s.syncPort(p)
	}
}

// syncPortOf makes the port of a function that has changed follow it, and with a PF the ports of its
// VFs, whose links may go with its own.
func (s *Shard) syncPortOf(id pfvf.ID) {
	if p := s.plain.byID[id]; p != nil {
		s.syncPort(p)
	}
	if id.IsVF() {
		return
	}
	for _, f := range s.funcs.ofPF(id) {
		if f.ID.IsVF() {
			s.syncPortOf(f.ID)
		}
	}
}

// syncPort makes a port follow what its function is set to: one that is disabled, or whose link is,
// takes no part.
func (s *Shard) syncPort(p *Port) {
	f, fn := s.funcs.settings(p.ID), s.funcs.byID[p.ID]
	up := fn != nil && fn.Lifecycle.State() != abi.StateDisabled && fn.LinkUp && !p.Lost
	p.Rate = nil
	if fn != nil {
		p.Rate = &fn.Rate
	}
	addrs := f.Addresses()
	s.core.SetPort(p.Function, gateway.Place{Name: p.Name, Shard: uint8(s.index), Tenant: f.Tenant, Addresses: addrs, MTU: p.Config.MTU, Up: up})
	s.plain.gw.Configure(p.Endpoint, gateway.EndpointConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: addrs, MTU: p.Config.MTU, Assign: *p.Config.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: p.TakesUSO(),
	}, up)
	s.plain.gw.AskForKeys(p.Endpoint, s.core)
	if port := p.Port; port != nil {
		s.effects.Add(effect.Func(func() { _ = port.SetLink(up) })) // one that is gone has no carrier either
	}
}

// Describe names a port for logs.
func (p *Port) Describe() string {
	return fmt.Sprintf("%s (%s)", p.Name, p.ID)
}

// counts adds the counters of the gateway.
func (p *plainIP) counts(v control.Counters) {
	counters.AddGateway(v, p.gw.Stats())
	for _, port := range p.ports {
		for r, n := range port.Drops {
			if n != 0 {
				v["port."+port.Name+"."+gateway.Reason(r).String()] = n
			}
		}
		if port.Port != nil { // it belongs to the shard's thread, as this does
			st := port.Port.Stats()
			counters.AddPort(v, port.Name, &st)
		}
	}
}

// Tunnels implements controller.View.
func (v View) Tunnels() (list []control.Route) {
	v.s.plain.gw.Tunnels(func(t *gateway.Tunnel) {
		list = append(list, control.Route{Kind: "peer", Peer: t.Peer, Tenant: t.Tenant, Sealed: t.Sealed()})
	})
	return list
}

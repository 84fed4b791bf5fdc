package shard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/cm"
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
	gw       *gateway.Gateway
	routes   *gateway.Routes
	networks *config.Networks
	ports    []*Port
	byID     map[pfvf.ID]*Port
	first    bool // the ports fill the tx queue before the transport does

	delivered func(*gateway.PortFrame) // Shard.delivered, made once
}

// Port is a function's port as the shard knows it. It belongs to the shard's thread.
type Port struct {
	*gateway.Endpoint
	ID     pfvf.ID
	Config *config.Port
	Rate   *credit.Bucket // of the function; nil: it is disabled
	shown  capture.Port   // in captures

	tenant  uint32 // whose networks have been added to it
	subnets []netip.Addr
}

// join makes the gateway know a port.
func (p *plainIP) join(f *Port) {
	f.Endpoint = p.gw.AddEndpoint(f.Config.Name, uint32(f.ID), gatewayMAC(f.ID.Host(), f.ID.PF(), f.ID.VF()))
	f.Owner, f.shown = f, f.described()
	p.ports = append(slices.Clone(p.ports), f)
	p.byID[f.ID] = f
}

// leave makes the gateway forget a port.
func (p *plainIP) leave(f *Port) {
	p.gw.RemoveEndpoint(f.Endpoint)
	p.routes.RemovePort(f.Function)
	p.inTenant(f, 0, nil)
	p.ports = slices.DeleteFunc(slices.Clone(p.ports), func(g *Port) bool { return g == f })
	if p.byID[f.ID] == f {
		delete(p.byID, f.ID)
	}
}

// inTenant has the tenant of a port include the networks around its addresses.
func (p *plainIP) inTenant(f *Port, tenant uint32, addrs []netip.Addr) {
	if f.tenant == tenant && slices.Equal(f.subnets, addrs) {
		return
	}
	added := p.networks.Add(tenant, addrs)
	removed := p.networks.Remove(f.tenant, f.subnets)
	if removed && f.tenant != tenant {
		p.routes.SetTenant(tenantConfig(p.networks.Of(f.tenant)))
	}
	if added || removed {
		p.routes.SetTenant(tenantConfig(p.networks.Of(tenant)))
	}
	f.tenant, f.subnets = tenant, addrs
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
	peers := make([]gateway.Peer, len(s.cfg.Peers))
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		peers[i] = gateway.Peer{Host: p.Host, Underlay: p.Underlay, Allows: p.Allows}
	}
	s.plain.routes = gateway.NewRoutes(s.cfg.Uplink.MTU-s.cfg.SealedOverhead(), peers...)
	s.plain.networks, s.plain.byID = s.cfg.Networks(), map[pfvf.ID]*Port{}
	s.plain.gw = gateway.New(uint8(s.index), s.plain.routes)
	s.plain.gw.Panicked = func(v any, frame []byte) { s.log.Panicked(s.now, "a packet of plain IP", v, frame) }
	for _, n := range s.cfg.AllFunctions() {
		if n.Port == nil {
			continue
		}
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		s.plain.join(&Port{ID: id, Config: n.Port})
		s.plain.routes.SetTenant(tenantConfig(s.plain.networks.Of(n.Tenant)))
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
	s.plain.inTenant(p, f.Tenant, addrs)
	at := gateway.Place{Shard: uint8(s.index), Tenant: f.Tenant, MTU: p.Config.MTU}
	if up {
		at.Addresses = addrs
	}
	s.plain.routes.SetPort(p.Function, at)
	s.plain.gw.Configure(p.Endpoint, gateway.EndpointConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: addrs, MTU: p.Config.MTU, Assign: *p.Config.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: p.TakesUSO(),
	}, up)
	s.plain.gw.AskForKeys(p.Endpoint, s.core)
	if port := p.Port; port != nil {
		s.effects.Add(effect.Func(func() { _ = port.SetLink(up) })) // one that is gone has no carrier either
	}
}

func tenantConfig(t config.Tenant) gateway.TenantConfig {
	g := gateway.TenantConfig{Tenant: t.Tenant, Subnets: t.Subnets, Routers: t.Routers, DNS: t.DNS}
	for _, r := range t.Routes {
		g.Routes = append(g.Routes, gateway.Route(r))
	}
	return g
}

// portAddresses lists what peers may send plain IP to.
func (p *plainIP) portAddresses() (list []cm.Port) {
	for _, port := range p.ports {
		if !port.Up() {
			continue
		}
		for _, a := range port.Addresses {
			list = append(list, cm.Port{Tenant: port.Tenant, Addr: a.As16(), Function: port.Function, MTU: uint32(port.MTU)})
		}
	}
	return list
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

// Routes implements controller.View.
func (v View) Routes() []control.Route { return v.s.plain.listRoutes() }

func (p *plainIP) listRoutes() (list []control.Route) {
	for _, e := range p.routes.Entries() {
		r := control.Route{Tenant: e.Tenant, Prefix: e.Prefix.String(), Kind: "none", MTU: e.To.MTU}
		if e.Via.IsValid() {
			r.Via = e.Via.String()
		}
		switch {
		case e.None:
		case e.To.Kind == gateway.ToRouter:
			r.Kind = "router"
		case e.To.Kind == gateway.ToPort:
			r.Kind, r.Port = "port", p.nameOf(e.To.Function)
		case e.To.Kind == gateway.ToPeer:
			r.Kind, r.Peer, r.Sealed = "peer", e.To.Peer, p.gw.Tunnel(e.To.Peer, e.Tenant).Sealed()
		}
		list = append(list, r)
	}
	return list
}

// nameOf names the port of a function, which may be of another shard.
func (p *plainIP) nameOf(function uint32) string {
	if e := p.gw.Endpoint(function); e != nil {
		return e.Name
	}
	return pfvf.ID(function).String()
}

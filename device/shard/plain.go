package shard

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
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
	gw    *gateway.Gateway
	ports []*Port
	first bool // the ports fill the tx queue before the transport does

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
	s.plain.gw = gateway.New(uint8(s.index), s.cfg.Uplink.MTU-s.cfg.SealedOverhead())
	s.plain.gw.Panicked = func(v any, frame []byte) { s.log.Panicked(s.now, "a packet of plain IP", v, frame) }
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		s.plain.gw.AddPeer(gateway.Peer{Host: p.Host, Underlay: p.Underlay, Allows: p.Allows})
	}
	for _, n := range s.cfg.AllFunctions() {
		if n.Port == nil {
			continue
		}
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		p := &Port{ID: id, Config: n.Port}
		s.plain.join(p)
		s.plain.ports = append(s.plain.ports, p)
	}
	return nil
}

// syncPorts makes the ports follow what their functions are set to: one that is disabled, or whose
// link is, takes no part.
func (s *Shard) syncPorts() {
	s.plain.gw.Update(func() {
		networks, used := s.cfg.Networks(), map[uint32]bool{}
		for _, p := range s.plain.ports {
			f := s.funcs.settings(p.ID)
			networks.Add(f.Tenant, f.Addresses())
			used[f.Tenant] = true
		}
		for tenant := range used {
			s.plain.gw.SetTenant(tenantConfig(networks.Of(tenant)))
		}
		for _, p := range s.plain.ports {
			s.syncPort(p)
		}
	})
	for i := range s.cfg.Peers { // a port may have come to a tenant where peers have some
		s.plain.gw.AskForKeys(s.cfg.Peers[i].Host, s.cm)
	}
}

func (s *Shard) syncPort(p *Port) {
	f, fn := s.funcs.settings(p.ID), s.funcs.byID[p.ID]
	up := fn != nil && fn.Lifecycle.State() != abi.StateDisabled && fn.LinkUp && !p.Lost
	p.Rate = nil
	if fn != nil {
		p.Rate = &fn.Rate
	}
	s.plain.gw.Configure(p.Endpoint, gateway.EndpointConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: f.Addresses(), MTU: p.Config.MTU, Assign: *p.Config.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: p.TakesUSO(),
	}, up)
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

// PortsChanged takes in what a peer says of its ports, and asks it for keys where packets for it may
// come.
func (s *Shard) PortsChanged(now falcon.Time, host cm.HostID) {
	var addrs []gateway.Address
	for _, p := range s.cm.PortsOf(host) {
		a := netip.AddrFrom16(p.Addr).Unmap()
		addrs = append(addrs, gateway.Address{Tenant: p.Tenant, Addr: a, Function: p.Function, MTU: int(min(p.MTU, 0xffff))})
	}
	for _, a := range s.plain.gw.Learn(host, addrs) {
		s.log.Line(now, slog.LevelWarn, "a peer's function gets no plain IP: add its address to this peer's functions in peers[], or list none of the tenant's",
			"peer", host, "tenant", a.Tenant, "address", a.Addr, "function", pfvf.ID(a.Function).String())
	}
	s.plain.gw.AskForKeys(host, s.cm)
	s.underlay.Resolve(now, s.peers[host].underlay)
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
func (v View) Routes() []control.Route { return v.s.plain.routes() }

func (p *plainIP) routes() (list []control.Route) {
	for _, e := range p.gw.Table() {
		r := control.Route{Tenant: e.Tenant, Prefix: e.Prefix.String(), Kind: "none", MTU: e.MTU}
		if e.Via.IsValid() {
			r.Via = e.Via.String()
		}
		switch {
		case e.Router:
			r.Kind = "router"
		case e.Endpoint != nil:
			r.Kind, r.Port = "port", e.Endpoint.Name
		case e.Tunnel != nil:
			r.Kind, r.Peer, r.Sealed = "peer", e.Tunnel.Peer, e.Tunnel.Sealed()
		}
		list = append(list, r)
	}
	return list
}

package shard

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// plainIP is a shard's part of the plain IP of its functions' ports: the gateway, and the settings
// of the ports.
//
//	port ▶ gateway ▶ cut ▶ seal ▶ underlay ▶ tx queue
//	frame ▶ underlay ▶ open ▶ gateway ▶ join ▶ port
type plainIP struct {
	gw      *gateway.Gateway
	ports   roster[Port]
	byID    map[pfvf.ID]*Port
	unfit   map[pfvf.ID]bool // functions whose port may not match their settings
	changed chan struct{}    // gets a value when settings of functions have changed

	shard   uint8
	funcs   *functionSet
	core    portRoutes
	effects *effect.List
}

// portRoutes is the part of Core that ports use.
type portRoutes interface {
	security.Requester
	SetPort(function uint32, at gateway.Place)
	RemovePort(function uint32)
}

var _ follower = (*plainIP)(nil)

// join adds a port to the gateway.
func (p *plainIP) join(f *Port) {
	f.Endpoint = p.gw.AddEndpoint(f.Config.Name, uint32(f.ID), gatewayMAC(f.ID.Host(), f.ID.PF(), f.ID.VF()))
	f.Owner, f.shown = f, f.described()
	p.ports.put(f.ID, f)
	p.byID[f.ID] = f
}

// leave removes a port from the gateway, and from the routes of all that send to it.
func (p *plainIP) leave(f *Port) {
	p.gw.RemoveEndpoint(f.Endpoint)
	if p.byID[f.ID] == f {
		p.ports.remove(f.ID)
		delete(p.byID, f.ID)
		p.core.RemovePort(f.Function)
	}
}

// gatewayMAC returns the MAC address that a port's guest sees for all other stations.
func gatewayMAC(host, pf uint8, vf uint16) gateway.MAC {
	m := config.FunctionMAC(host, pf, vf)
	m[2] = 0x4f
	return gateway.MAC(m)
}

// populate creates the ports of the configuration.
func (p *plainIP) populate(cfg *config.Config) error {
	home := cfg.Homes()
	for _, n := range cfg.AllFunctions() {
		if n.Port == nil || home(n.PF, n.VF) != int(p.shard) {
			continue
		}
		id, err := pfvf.NewID(uint32(cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		p.join(&Port{ID: id, Config: n.Port})
	}
	for f := range p.funcs.there.all() { // their settings may have changed since
		p.mark(f.ID)
	}
	for id := range p.funcs.absent {
		p.mark(id)
	}
	p.syncAll()
	return nil
}

// syncAll applies the settings of functions to all ports.
func (p *plainIP) syncAll() {
	for port := range p.ports.all() {
		p.sync(port)
	}
}

// mark implements follower.
func (p *plainIP) mark(id pfvf.ID) { p.unfit[id] = true }

// follow implements follower: it updates the function's port, and signals changed for windows and
// ports' devices, which the shard does not create. The core tells peers.
func (p *plainIP) follow(id pfvf.ID) {
	p.syncOf(id)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// syncOf updates the port of a function that has changed, and with a PF the ports of its VFs, whose
// links may depend on the PF's.
func (p *plainIP) syncOf(id pfvf.ID) {
	if port := p.byID[id]; port != nil {
		p.sync(port)
	}
	if id.IsVF() {
		return
	}
	for f := range p.funcs.there.of(id) {
		if f.ID.IsVF() {
			p.syncOf(f.ID)
		}
	}
}

// sync applies a function's settings to its port. The port is down if the function is disabled, its
// link is down, or the port's device is gone.
func (p *plainIP) sync(to *Port) {
	f, fn := p.funcs.settings(to.ID), p.funcs.byID[to.ID]
	up := fn != nil && fn.Lifecycle.State() != abi.StateDisabled && fn.LinkUp && !to.Lost
	to.Rate = nil
	if fn != nil {
		to.Rate = &fn.Rate
	}
	addrs := f.Addresses()
	p.core.SetPort(to.Function, gateway.Place{Name: to.Name, Shard: p.shard, Tenant: f.Tenant, Addresses: addrs, MTU: to.Config.MTU, Up: up})
	p.gw.Configure(to.Endpoint, gateway.EndpointConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: addrs, MTU: to.Config.MTU, Assign: *to.Config.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: to.TakesUSO(),
	}, up)
	p.gw.Tunnels.AskForKeys(to.Endpoint, p.core)
	if port := to.Port; port != nil {
		p.effects.Add(effect.Func(func() { _ = port.SetLink(up) })) // a port that is gone has no carrier either
	}
}

// endpointOf returns the gateway's endpoint of a function; nil: it has no port.
func (p *plainIP) endpointOf(id pfvf.ID) *gateway.Endpoint {
	if port := p.byID[id]; port != nil {
		return port.Endpoint
	}
	return nil
}

// counts adds the counters of the gateway and the ports.
func (p *plainIP) counts(v control.Counters) {
	counters.AddGateway(v, p.gw.Stats())
	for port := range p.ports.all() {
		for r, n := range port.Drops {
			if n != 0 {
				v["port."+port.Name+"."+gateway.Reason(r).String()] = n
			}
		}
		if port.Port != nil { // its statistics belong to the shard's thread, like this code
			st := port.Port.Stats()
			counters.AddPort(v, port.Name, &st)
		}
	}
}

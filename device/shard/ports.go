package shard

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Port is a function's port in the shard. It belongs to the shard's thread.
type Port struct {
	*gateway.Endpoint
	ID     pfvf.ID
	Config *config.Port
	Rate   *credit.Bucket // the function's; nil: it is disabled
	shown  capture.Port   // its name in captures
}

// portOf returns the Port of a gateway endpoint.
func portOf(p *gateway.Endpoint) *Port {
	f, _ := p.Owner.(*Port)
	return f
}

// Describe names the port for logs.
func (p *Port) Describe() string {
	return fmt.Sprintf("%s (%s)", p.Name, p.ID)
}

// described returns the name and description of the port in a capture.
func (p *Port) described() capture.Port {
	return capture.Port{Name: p.Config.Name, Description: "port of " + p.ID.String() + ": Ethernet frames as its guest sends and gets them"}
}

// remark returns a capture's comment on one of the port's frames.
func (p *Port) remark(o *gateway.Offload) string {
	text := p.ID.String()
	if o.GSO != 0 {
		text += fmt.Sprintf(", stands for packets of %d bytes each", o.Size)
	}
	if o.NeedsCsum {
		text += ", checksum not filled in"
	}
	return text
}

// plainIP is a shard's part of the plain IP of its functions' ports: the gateway, and the ports.
//
//	port ▶ gateway ▶ cut ▶ seal ▶ underlay ▶ tx queue
//	frame ▶ underlay ▶ open ▶ gateway ▶ join ▶ port
type plainIP struct {
	gw     *gateway.Gateway
	ports  perFunction[Port]
	marked map[pfvf.ID]bool // functions whose port may not match their settings

	shard   uint8
	core    Core
	effects *effect.List
}

// newPlainIP returns the plain IP of a shard (index), without ports.
func newPlainIP(index int, cfg *config.Config, core Core, effects *effect.List) *plainIP {
	p := &plainIP{
		gw: gateway.New(uint8(index), core.Routes()), ports: perFunction[Port]{host: cfg.NIC.Host}, marked: map[pfvf.ID]bool{},
		shard: uint8(index), core: core, effects: effects,
	}
	p.gw.UseFunctions(core.Knows)
	return p
}

// join adds a port to the gateway.
func (p *plainIP) join(f *Port, mac config.MAC) {
	f.Endpoint = p.gw.AddEndpoint(f.Config.Name, uint32(f.ID), gatewayMAC(mac))
	f.Owner, f.shown = f, f.described()
	p.ports.put(f.ID, f)
}

// leave removes a port from the gateway, and from the routes of all that send to it.
func (p *plainIP) leave(f *Port) {
	p.gw.RemoveEndpoint(f.Endpoint)
	if p.ports.get(f.ID) == f {
		p.ports.remove(f.ID)
		p.core.RemovePort(f.Function)
	}
}

// gatewayMAC returns the MAC address that a port's guest sees for all other hosts.
func gatewayMAC(function config.MAC) gateway.MAC { return gateway.MAC(config.GatewayMAC(function)) }

// populate creates the ports of the configuration.
func (p *plainIP) populate(cfg *config.Config) error {
	shardOf := cfg.ShardOf()
	for _, n := range cfg.AllFunctions() {
		if n.Port == nil || shardOf(n.PF, n.VF) != int(p.shard) {
			continue
		}
		id, err := pfvf.NewID(uint32(cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		p.join(&Port{ID: id, Config: n.Port}, n.MAC)
	}
	return nil
}

// mark records that a function's port may not match its settings.
func (p *plainIP) mark(id pfvf.ID) { p.marked[id] = true }

// followPort updates the port of a function that has changed, and signals that for windows and
// ports' devices, which the shard does not create. The core tells peers.
func (fs *functionSet) followPort(id pfvf.ID) {
	fs.syncPorts(id)
	select {
	case fs.signal <- struct{}{}:
	default:
	}
}

// syncAllPorts applies the settings of functions to all ports.
func (fs *functionSet) syncAllPorts() {
	for port := range fs.plain.ports.all() {
		fs.syncPort(port)
	}
}

// syncPorts updates the port of a function that has changed, and with a PF the ports of its VFs,
// whose links may depend on the PF's.
func (fs *functionSet) syncPorts(id pfvf.ID) {
	if port := fs.plain.ports.get(id); port != nil {
		fs.syncPort(port)
	}
	if id.IsVF() {
		return
	}
	for f := range fs.members.of(id) {
		if f.ID.IsVF() {
			fs.syncPorts(f.ID)
		}
	}
}

// syncPort applies a function's settings to its port. The port is down if the function is disabled,
// its link is down, or the port's device is gone.
func (fs *functionSet) syncPort(port *Port) {
	is, f := fs.settings(port.ID), fs.members.get(port.ID)
	up := f != nil && f.Lifecycle.State() != abi.StateDisabled && f.LinkUp && !port.Lost
	port.Rate = nil
	if f != nil {
		port.Rate = &f.Rate
	}
	fs.plain.configure(port, &is, up)
}

// configure tells the gateway, the core and the port's device what a function's port is set to.
func (p *plainIP) configure(to *Port, f *config.Function, up bool) {
	addrs := f.Addresses()
	to.Gateway = gatewayMAC(f.MAC)
	p.core.SetPort(to.Function, gateway.Place{Name: to.Name, Shard: p.shard, Tenant: f.Tenant, Addresses: addrs, MTU: to.Config.MTU, Up: up})
	p.gw.Configure(to.Endpoint, gateway.EndpointConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: addrs, MTU: to.Config.MTU, Assign: *to.Config.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: to.TakesUSO(),
	}, up)
	p.gw.Tunnels.AskForKeys(to.Endpoint, p.core)
	if dev := to.Device; dev != nil {
		p.effects.Add(effect.Func(func() { _ = dev.SetLink(up) })) // a device that is gone has no carrier either
	}
}

// endpointOf returns the gateway's endpoint of a function; nil: it has no port.
func (p *plainIP) endpointOf(id pfvf.ID) *gateway.Endpoint {
	if port := p.ports.get(id); port != nil {
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
		if port.Device != nil { // its statistics belong to the shard's thread, like this code
			st := port.Device.Stats()
			counters.AddPort(v, port.Name, &st)
		}
	}
}

// Ports gives access to the ports of a shard's functions, for the code that creates and serves
// their devices: that is I/O, which the shard does not do. It belongs to the shard's thread.
type Ports struct{ s *Shard }

// Ports returns the ports of the shard's functions.
func (s *Shard) Ports() Ports { return Ports{s} }

// All returns all ports.
func (p Ports) All() iter.Seq[*Port] { return p.s.plain.ports.all() }

// Len returns the number of ports.
func (p Ports) Len() int { return p.s.plain.ports.len() }

// Post makes the shard's thread call f soon. It returns false once the thread has ended.
func (p Ports) Post(f func()) bool { return p.s.inbox.Post(posted(f)) }

type posted func()

// Drain implements inbox.Source.
func (f posted) Drain(falcon.Time) { f() }

// Sync applies the settings of functions to all ports.
func (p Ports) Sync() {
	p.s.tape.Event(tape.PortSync)
	p.s.tapePorts()
	p.s.funcs.syncAllPorts()
}

// Busy reports whether frames of ports are still being sealed: no further ones may be read.
func (p Ports) Busy() bool { return p.s.plain.gw.Busy() }

// Take gives the shard frames of ports for its next Step. It may be called with frames only when
// Busy is false. Their memory belongs to the shard while it is Busy with them.
func (p Ports) Take(in []gateway.PortInput) { p.s.fromPorts = in }

// Deliver gives the ports the frames that wait for them.
func (p Ports) Deliver() {
	if p.s.plain.gw.Waiting() {
		p.s.tape.Event(tape.Deliver)
		p.s.plain.gw.Deliver(p.s.delivered)
	}
}

// MayWait reports whether the last frame in the uplink's queue, which is a port's, may wait for more.
func (p Ports) MayWait() bool { return p.s.uplink.tx.MayWait }

// Lost takes a port whose device is gone out of service.
func (p Ports) Lost(now falcon.Time, port *Port) {
	if p.s.tape.Event(tape.PortLost) {
		p.s.tape.PutUint(uint64(port.ID))
	}
	port.Lost = true
	p.s.plain.mark(port.ID)
	p.s.funcs.syncPort(port)
}

// Change removes the ports that do not match their functions' settings, after passing each to gone,
// and returns those that are missing. It looks at functions that were changed since the last call,
// and at those whose port could not be created.
func (p Ports) Change(gone func(*Port)) (come []*Port) {
	p.s.tape.Event(tape.PortChange)
	plain := p.s.plain
	for _, id := range slices.Sorted(maps.Keys(plain.marked)) {
		is, want := plain.ports.get(id), p.s.funcs.settings(id).Port
		fits := is != nil && !is.Lost && is.Device != nil && want != nil && reflect.DeepEqual(is.Config, want)
		if is != nil && !fits {
			gone(is)
			plain.leave(is)
		}
		if want == nil || fits {
			delete(plain.marked, id)
			continue
		}
		come = append(come, &Port{ID: id, Config: want})
	}
	return come
}

// Add adds a port to the shard. add adds it to its device; if that fails, remove undoes it.
func (p Ports) Add(port *Port, add func() error, remove func()) (err error) {
	plain, fs := p.s.plain, p.s.funcs
	plain.join(port, fs.settings(port.ID).MAC)
	err = add()
	p.s.tapeAdded(port, err)
	if err == nil {
		fs.syncPort(port)
		if f := fs.members.get(port.ID); f != nil && f.Verbs() != nil {
			p.s.networks.portAdded(&f.conns.Owner, f.Verbs(), f, f.wireName())
		}
		delete(plain.marked, port.ID)
		return nil
	}
	remove()
	plain.leave(port)
	return err
}

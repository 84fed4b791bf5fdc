package device

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// plainIP is a shard's part in the plain IP of its functions' ports. The gateway decides where
// packets go; keys, sealing and the underlay are here.
//
//	port ▶ gateway ▶ cut ▶ psp seal ▶ underlay ▶ tx queue
//	frame ▶ underlay ▶ psp open ▶ gateway ▶ join ▶ port
type plainIP struct {
	gw    *gateway.Gateway
	ports []*functionPort

	in     []gateway.PortInput // taken, in order; those before next are done
	next   int
	cut    gateway.Forward // of the frame before next, while cutting
	cuts   bool
	first  bool // the ports fill the tx queue before the transport does
	denied uint64
}

// functionPort is a function's port as the shard knows it.
type functionPort struct {
	*gateway.Port
	id      pfvf.ID
	cfg     *config.Port
	rate    *credit.Bucket      // of the function; nil: it is disabled
	uso     bool                // what the device can
	lost    bool                // the device is gone
	setLink func(up bool) error // tells the guest's side; nil: there is no device
	stats   func() tap.Stats    // of the device, nil: none
}

// tunnelEnd is the owner's part of a gateway.Tunnel.
type tunnelEnd struct {
	peer *peer
	tx   *security.TxSA // nil: no key yet
}

// gatewayMAC is what the guest of a function's port sees of all other stations.
func gatewayMAC(host, pf uint8, vf uint16) gateway.MAC {
	m := config.FunctionMAC(host, pf, vf)
	m[2] = 0x4f
	return gateway.MAC(m)
}

// newPlainIP makes the gateway with the ports of the configuration.
func (s *Shard) newPlainIP() error {
	s.plain.gw = gateway.New(s.cfg.Uplink.MTU - s.cfg.SealedOverhead())
	s.plain.gw.Panicked = func(v any, frame []byte) { s.tellPanic(s.now, "a packet of plain IP", v, frame) }
	for _, n := range s.cfg.AllFunctions() {
		if n.Port == nil {
			continue
		}
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), uint32(n.PF), uint32(n.VF))
		if err != nil {
			return err
		}
		p := s.plain.gw.AddPort(n.Port.Name, uint32(id), gatewayMAC(s.cfg.NIC.Host, n.PF, n.VF))
		s.plain.ports = append(s.plain.ports, &functionPort{Port: p, id: id, cfg: n.Port})
	}
	return nil
}

// syncPorts makes the ports follow what their functions are set to: one that is disabled, or whose
// link is, takes no part.
func (s *Shard) syncPorts() {
	s.plain.gw.Update(func() {
		networks, used := s.cfg.Networks(), map[uint32]bool{}
		for _, p := range s.plain.ports {
			f := s.funcs.settings(p.id)
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
		s.askForKeys(s.cfg.Peers[i].Host)
	}
}

func (s *Shard) syncPort(p *functionPort) {
	f, fn := s.funcs.settings(p.id), s.funcs.byID[p.id]
	up := fn != nil && fn.Lifecycle.State() != abi.StateDisabled && fn.LinkUp && !p.lost
	p.rate = nil
	if fn != nil {
		p.rate = &fn.Rate
	}
	s.plain.gw.Configure(p.Port, gateway.PortConfig{
		Tenant: f.Tenant, MAC: gateway.MAC(f.MAC), Addresses: f.Addresses(), MTU: p.cfg.MTU, Assign: *p.cfg.Assign,
		Trust: f.Trust, Spoof: !*f.SpoofCheck, USO: p.uso,
	}, up)
	if set := p.setLink; set != nil {
		s.effects.Add(effect.Func(func() { _ = set(up) })) // a device that is gone has no carrier either
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
func (s *Shard) portAddresses() (list []cm.Port) {
	for _, p := range s.plain.ports {
		if !p.Up() {
			continue
		}
		for _, a := range p.Addresses {
			list = append(list, cm.Port{Tenant: p.Tenant, Addr: a.As16(), Function: p.Function, MTU: uint32(p.MTU)})
		}
	}
	return list
}

// lostPort takes out a port whose device is gone.
func (s *Shard) lostPort(now falcon.Time, p *functionPort) {
	p.lost = true
	if err := s.announce(); err != nil { // fewer than before
		s.log.line(now, slog.LevelError, "ports not told to peers", "err", err)
	}
	s.cm.Run(now)
}

// PortsChanged takes in what a peer says of its ports, and asks it for keys where packets for it may
// come.
func (s *Shard) PortsChanged(now falcon.Time, host cm.HostID) {
	to := s.peers[host]
	var addrs []gateway.Address
	refused := map[config.PeerFunction]bool{}
	for _, p := range s.cm.PortsOf(host) {
		a := netip.AddrFrom16(p.Addr).Unmap()
		if !to.cfg.Allows(p.Tenant, a) {
			s.plain.denied++
			f := config.PeerFunction{Tenant: p.Tenant, Address: a}
			if refused[f] = true; !to.refused[f] {
				s.log.line(now, slog.LevelWarn, "a peer's function gets no plain IP: add its address to this peer's functions in peers[], or list none of the tenant's",
					"peer", host, "tenant", p.Tenant, "address", a, "function", pfvf.ID(p.Function).String())
			}
			continue
		}
		addrs = append(addrs, gateway.Address{Tenant: p.Tenant, Addr: a, Function: p.Function, MTU: int(min(p.MTU, 0xffff))})
	}
	to.refused = refused
	s.plain.gw.Learn(host, addrs)
	s.askForKeys(host)
	s.underlay.Resolve(now, to.underlay)
}

// askForKeys asks a peer for keys of the tunnels to it that have none.
func (s *Shard) askForKeys(host cm.HostID) {
	s.plain.gw.Tunnels(host, func(t *gateway.Tunnel) {
		if t.User == nil {
			t.User = &tunnelEnd{peer: s.peers[host]}
		}
		if end := t.User.(*tunnelEnd); end.tx == nil {
			_ = s.cm.RequestRekey(host, t.Tenant, cm.ClassGateway, 0)
		}
	})
}

// tunnelKey makes a tunnel seal with what the peer gave us.
func (s *Shard) tunnelKey(u security.Use, sa cm.SA) error {
	t := s.plain.gw.Tunnel(u.Peer, u.Tenant)
	if t == nil || t.User == nil {
		return nil // not asked for
	}
	tx, err := s.txSAs.Give(u, sa)
	if err == nil {
		t.User.(*tunnelEnd).tx = tx
	}
	return err
}

// forgetKeys drops what a peer gave us that has lost it.
func (p *plainIP) forgetKeys(host cm.HostID) {
	p.gw.Tunnels(host, func(t *gateway.Tunnel) {
		if end, ok := t.User.(*tunnelEnd); ok {
			end.tx = nil
		}
	})
}

// take begins with frames of ports.
func (p *plainIP) take(in []gateway.PortInput) {
	if len(in) > 0 {
		p.in, p.next = in, 0
	}
}

// up tells whether a function's port takes part in the network.
func (p *plainIP) up(id pfvf.ID) bool {
	return slices.ContainsFunc(p.ports, func(f *functionPort) bool { return f.id == id && f.Up() })
}

// busy tells whether frames of ports are still to be sealed.
func (p *plainIP) busy() bool { return p.next < len(p.in) || p.cuts }

// transmitPlain seals what came from the ports, as far as the tx queue has room; the rest waits
// where it is.
func (s *Shard) transmitPlain(now falcon.Time) {
	p := &s.plain
	for p.busy() {
		if !p.cuts {
			in := &p.in[p.next]
			p.next++
			p.cuts = p.gw.FromPort(now, in.Port, in.Frame, in.Offload, &p.cut)
			continue
		}
		b := s.tx.Slot()
		if b == nil {
			return
		}
		packet := s.nextPlain(now)
		if packet == nil {
			p.cuts = false
			continue
		}
		s.sealPlain(now, b, packet)
	}
}

// nextPlain cuts the next packet from the frame at hand.
func (s *Shard) nextPlain(now falcon.Time) []byte {
	defer s.survive(now, "a frame of a port", s.plain.cut.Packet)
	return s.plain.cut.Next()
}

// sealPlain seals one packet of a port and queues the frame.
//
//	Ethernet | IP | UDP | PSP, cookie | inner IP … | ICV
func (s *Shard) sealPlain(now falcon.Time, b, packet []byte) {
	f := &s.plain.cut
	end, _ := f.Tunnel.User.(*tunnelEnd)
	stats := s.plain.gw.Stats()
	if end == nil || end.tx == nil {
		stats.Reasons[gateway.DropNoKey]++
		return
	}
	s.capturePlain(captureOut, now, f.Tunnel, packet)
	sealed, err := end.tx.SealPlain(now, b[s.underlay.Headroom():], packet)
	if err != nil {
		s.drops.count(dropTxSeal)
		return
	}
	stats.TunnelPackets++
	stats.TunnelBytes += uint64(len(packet))
	total, ok := s.underlay.OutputClass(now, end.peer.underlay, firstPort+uint16(f.Flow%paths), f.ECN, b, sealed)
	if !ok {
		return // kept by the underlay until the neighbour answers, or counted there
	}
	s.capture.sealed(captureOut, now, b[:total])
	s.tx.Commit(total)
	s.tx.Patient = true
}

// receivePlain takes an opened packet of the gateway class to the port it is for. The key says
// which peer sealed it for which tenant; the cookie must agree.
func (s *Shard) receivePlain(now falcon.Time, d *underlay.Datagram, o *security.Opened) {
	if len(s.plain.ports) == 0 {
		s.drops.count(dropNoGateway)
		return
	}
	reasons := &s.plain.gw.Stats().Reasons
	if !o.OwnCookie() {
		reasons[gateway.DropWrongVC]++
		return
	}
	if p := s.peers[o.Use.Peer]; p != nil && d.Src == p.underlay {
		s.underlay.Authenticated(now, d)
	}
	packet, ok := o.Plain()
	if !ok {
		reasons[gateway.DropHeader]++
		return
	}
	t := s.plain.gw.Tunnel(o.Use.Peer, o.Use.Tenant)
	if t == nil {
		reasons[gateway.DropWrongSource]++ // says it has no port, or has not said yet that it has
		return
	}
	s.capturePlain(captureIn, now, t, packet)
	s.plain.gw.FromTunnel(t, o.WithRoom(gateway.EthernetLen), d.ECN)
}

// describePort names a port for logs.
func (p *functionPort) describePort() string {
	return fmt.Sprintf("%s (%s)", p.Name, p.id)
}

// counts adds the counters of the gateway.
func (p *plainIP) counts(v control.Counters) {
	st := p.gw.Stats()
	for r, n := range st.Reasons {
		if r != 0 {
			v["gateway."+gateway.Reason(r).String()] = n
		}
	}
	for name, n := range map[string]uint64{
		"from_ports": st.FromPorts, "from_port_bytes": st.FromPortBytes, "to_ports": st.ToPorts, "to_port_bytes": st.ToPortBytes,
		"segments": st.Segments, "coalesced": st.Coalesced, "local": st.Local, "tunnel_tx_packets": st.TunnelPackets, "tunnel_tx_bytes": st.TunnelBytes,
		"tunnel_rx_packets": st.TunnelIn, "tunnel_rx_bytes": st.TunnelInBytes, "addresses_refused": p.denied,
	} {
		v["gateway."+name] = n
	}
	for _, port := range p.ports {
		at := "port." + port.Name + "."
		for r, n := range port.Drops {
			if n != 0 {
				v[at+gateway.Reason(r).String()] = n
			}
		}
		if port.stats != nil { // the device belongs to the shard's thread, as this does
			st := port.stats()
			v[at+"rx_frames"], v[at+"rx_bytes"], v[at+"rx_dropped"] = st.RxFrames, st.RxBytes, st.RxDropped
			v[at+"tx_frames"], v[at+"tx_bytes"], v[at+"tx_dropped"] = st.TxFrames, st.TxBytes, st.TxDropped
		}
	}
}

// Routes implements controller.View.
func (v view) Routes() []control.Route { return v.s.routes() }

func (s *Shard) routes() (list []control.Route) {
	for _, e := range s.plain.gw.Table() {
		r := control.Route{Tenant: e.Tenant, Prefix: e.Prefix.String(), Kind: "none", MTU: e.MTU}
		if e.Via.IsValid() {
			r.Via = e.Via.String()
		}
		switch {
		case e.Router:
			r.Kind = "router"
		case e.Port != nil:
			r.Kind, r.Port = "port", e.Port.Name
		case e.Tunnel != nil:
			end, _ := e.Tunnel.User.(*tunnelEnd)
			r.Kind, r.Peer, r.Sealed = "peer", e.Tunnel.Peer, end != nil && end.tx != nil
		}
		list = append(list, r)
	}
	return list
}

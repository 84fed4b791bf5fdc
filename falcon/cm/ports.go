package cm

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Port says that a function's Ethernet port has an address in a tenant. Plain IP for it goes to the
// NIC that said so.
type Port struct {
	Tenant   uint32
	Addr     [16]byte // IPv4 as IPv4-mapped, like a GID
	Function uint32   // host 8 | PF 4 | VF 12
	MTU      uint32   // of the port, bytes of IP packet
}

// MaxPorts is how many addresses of ports one NIC can tell another.
const MaxPorts = 2048

// PORTS tells which addresses the sender's ports have in the tenants shared with the receiver. It
// follows Hello and is sent again when something changes: a function that was disabled is not in it
// any more. The newest replaces the ones before.
//
//	count 16 | reserved 16 | count × { tenant 32 | address 128 | function 32 | MTU 32 }
type PORTS struct {
	Ports []Port // at most MaxPorts
}

const portLen = 28

// Append encodes the message at the end of b.
func (m *PORTS) Append(b []byte) []byte {
	b, start := begin(b, TypePORTS)
	b = appendCount(b, len(m.Ports))
	for i := range m.Ports {
		p := &m.Ports[i]
		b = binary.BigEndian.AppendUint32(b, p.Tenant)
		b = append(b, p.Addr[:]...)
		b = binary.BigEndian.AppendUint32(b, p.Function)
		b = binary.BigEndian.AppendUint32(b, p.MTU)
	}
	return end(b, start)
}

// ParsePORTS decodes a whole message.
func ParsePORTS(b []byte) (m PORTS, err error) {
	d, err := decode(b, TypePORTS)
	if err != nil {
		return m, err
	}
	for range d.count("ports", MaxPorts, portLen) {
		m.Ports = append(m.Ports, Port{Tenant: d.u32(), Addr: d.gid(), Function: d.u24("function"), MTU: d.u32()})
	}
	return m, d.done()
}

// SetPorts says which ports this NIC has, replacing what it said before, and tells the peers that
// are up. Errors: ErrInvalid for a function of another host, ErrLimit if more than MaxPorts are to
// be told to one peer; then nothing changes.
func (m *Manager) SetPorts(local []Port) error {
	if err := m.CheckPorts(local); err != nil {
		return err
	}
	m.ports = slices.Clone(local)
	for _, p := range m.sortedPeers() {
		if p.up {
			m.sayPorts(p)
		}
	}
	return nil
}

// CheckPorts says whether SetPorts would do.
func (m *Manager) CheckPorts(local []Port) error {
	for _, e := range local {
		if e.Function > max24 || HostID(e.Function>>16) != m.cfg.Host {
			return fmt.Errorf("cm: port of function %#06x, which is not of host %d: %w", e.Function, m.cfg.Host, ErrInvalid)
		}
	}
	for _, p := range m.peers {
		if n := len(p.shared(local)); n > MaxPorts {
			return fmt.Errorf("cm: %d addresses of ports in the tenants shared with host %d, at most %d: %w", n, p.Host, MaxPorts, ErrLimit)
		}
	}
	return nil
}

// PortsOf lists what a peer said of its ports and is believed.
func (m *Manager) PortsOf(host HostID) []Port {
	if p := m.peers[host]; p != nil {
		return slices.Clone(p.ports)
	}
	return nil
}

func (p *peer) shared(all []Port) (list []Port) {
	for _, e := range all {
		if p.tenants[e.Tenant] {
			list = append(list, e)
		}
	}
	return list
}

func (m *Manager) sayPorts(p *peer) {
	msg := PORTS{p.shared(m.ports)}
	if len(msg.Ports) == 0 && !p.told {
		return
	}
	p.told = len(msg.Ports) > 0
	m.send(p, msg.Append(nil))
}

func (m *Manager) portsSaid(_ Time, p *peer, said *PORTS) { m.learnPorts(p, said.Ports) }

// learnPorts replaces what is known of a peer's ports. As with functions, an address that someone
// else has stays with him, unless he is a peer whose link is down.
func (m *Manager) learnPorts(p *peer, said []Port) {
	for _, e := range p.ports {
		delete(m.portOwners, endpointKey{e.Tenant, e.Addr})
	}
	p.ports = p.ports[:0]
	for _, e := range said {
		k := endpointKey{e.Tenant, e.Addr}
		switch owner := m.portOwners[k]; {
		case !p.tenants[e.Tenant]:
			m.stats.RouteTenantRefused++
		case HostID(e.Function>>16) != p.Host:
			m.stats.RouteFunctionRefused++
		case owner != nil && (owner == p || owner.up):
			m.stats.RouteConflicts++
		default:
			if owner != nil {
				owner.ports = slices.DeleteFunc(owner.ports, func(o Port) bool { return endpointKey{o.Tenant, o.Addr} == k })
				m.emit(Output{Kind: OutPorts, Peer: owner.Host})
			}
			m.portOwners[k] = p
			p.ports = append(p.ports, e)
		}
	}
	m.emit(Output{Kind: OutPorts, Peer: p.Host})
}

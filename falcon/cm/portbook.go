package cm

import (
	"fmt"
	"slices"
)

// portBook has the addresses of ports: ours, and those of peers.
type portBook struct {
	peers  *peers
	out    *outbox
	ports  []Port                // ours
	owners map[endpointKey]*peer // of the peers' ports
}

func newPortBook(p *peers, out *outbox) *portBook {
	return &portBook{peers: p, out: out, owners: make(map[endpointKey]*peer)}
}

// set replaces what we say of ours, and tells the peers that are up.
func (b *portBook) set(local []Port) error {
	if err := b.check(local); err != nil {
		return err
	}
	b.ports = slices.Clone(local)
	for _, p := range b.peers.sorted() {
		if p.up {
			b.tell(p)
		}
	}
	return nil
}

// check says whether set would do.
func (b *portBook) check(local []Port) error {
	for _, e := range local {
		if e.Function > max24 || HostID(e.Function>>16) != b.peers.self.Host {
			return fmt.Errorf("cm: port of function %#06x, which is not of host %d: %w", e.Function, b.peers.self.Host, ErrInvalid)
		}
	}
	for _, p := range b.peers.byHost {
		if n := len(p.shared(local)); n > MaxPorts {
			return fmt.Errorf("cm: %d addresses of ports in the tenants shared with host %d, at most %d: %w", n, p.Host, MaxPorts, ErrLimit)
		}
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

// tell says to a peer what we say of our ports, if it was told anything before or there are some.
func (b *portBook) tell(p *peer) {
	msg := PORTS{p.shared(b.ports)}
	if len(msg.Ports) == 0 && !p.told {
		return
	}
	p.told = len(msg.Ports) > 0
	b.out.send(p, msg.Append(nil))
}

// learn replaces what is known of a peer's ports. As with functions, an address that someone
// else has stays with him, unless he is a peer whose link is down.
func (b *portBook) learn(p *peer, said []Port) {
	for _, e := range p.ports {
		delete(b.owners, endpointKey{e.Tenant, e.Addr})
	}
	p.ports = p.ports[:0]
	for _, e := range said {
		k := endpointKey{e.Tenant, e.Addr}
		switch owner := b.owners[k]; {
		case !p.tenants[e.Tenant]:
			b.out.stats.RouteTenantRefused++
		case HostID(e.Function>>16) != p.Host:
			b.out.stats.RouteFunctionRefused++
		case owner != nil && (owner == p || owner.up):
			b.out.stats.RouteConflicts++
		default:
			if owner != nil {
				owner.ports = slices.DeleteFunc(owner.ports, func(o Port) bool { return endpointKey{o.Tenant, o.Addr} == k })
				b.out.emit(Output{Kind: OutPorts, Peer: owner.Host})
			}
			b.owners[k] = p
			p.ports = append(p.ports, e)
		}
	}
	b.out.emit(Output{Kind: OutPorts, Peer: p.Host})
}

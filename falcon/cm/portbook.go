package cm

import (
	"fmt"
	"slices"
)

// portBook holds the addresses of ports: ours, and those of peers.
type portBook struct {
	peers  *peers
	out    *outbox
	ports  []Port // ours
	claims claims[Port]
}

func newPortBook(p *peers, out *outbox) *portBook {
	return &portBook{peers: p, out: out, claims: newClaims[Port](p, out)}
}

// set replaces our ports, and informs the peers that are up.
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

// check reports whether set would succeed.
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

// tell announces our ports to a peer. It sends nothing if there are none and none were announced
// before.
func (b *portBook) tell(p *peer) {
	msg := PORTS{p.shared(b.ports)}
	if len(msg.Ports) == 0 && !p.told {
		return
	}
	p.told = len(msg.Ports) > 0
	b.out.send(p, msg.Append(nil))
}

// learn replaces a peer's ports.
func (b *portBook) learn(p *peer, said []Port) {
	list := make([]told[Port], len(said))
	for i := range said {
		list[i] = told[Port]{Address{said[i].Tenant, said[i].Addr}, said[i].Function, said[i]}
	}
	refused, others := b.claims.learn(p, list)
	p.refuse(b.out, &p.refused.ports, refused)
	b.changed(append(others, p))
}

// changed reports that the ports of these peers have changed.
func (b *portBook) changed(list []*peer) {
	for _, p := range list {
		b.out.emit(Output{Kind: OutPorts, Peer: p.Host})
	}
}

// of lists the ports of a peer.
func (b *portBook) of(p *peer) (list []Port) {
	b.claims.has(p, func(_ Address, what Port) { list = append(list, what) })
	return list
}

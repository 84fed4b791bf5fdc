package controller

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Peers holds the NICs that this one may talk to: who they are, where, and what they may have. It is
// the seam between where peers come from and all that uses them. Whoever has something to say about
// peers makes a whole list of it, and Peers finds what was added, changed and removed:
//
//	configuration: what differs in the file that was read again (Reload, together with functions)
//	operator:      one peer added, set or removed (operate)
//	directory:     what a fleet's etcd says, beside the others (follow)
//	       │ the list is checked against everything first, then set
//	       ├─▶ functions.Registry  which tenants are told to whom, and which addresses are theirs
//	       ├─▶ cm.Manager          connections, keys, claims to addresses
//	       ├─▶ shards, by orders   where packets to a peer go
//	       └─▶ links, by CoreOutput
//
// A peer is known by the name in its certificate. Inside the NIC it goes by a small number
// (cm.PeerID), which is not given to another peer before all others were given once. So what is
// still under way for a peer that is gone reaches nobody.
//
// It belongs to the core's goroutine.
type Peers struct {
	core   *Core
	list   []config.Peer // in the order of the configuration
	byName map[string]*Peer
	sorted []*Peer // by name, numbers first
	byID   map[cm.PeerID]*Peer
	last   cm.PeerID

	followed map[string]bool // by name: those that a directory told of
	owners   *config.Owners  // of addresses that are listed for peers
}

// Peer is another NIC.
type Peer struct {
	ID   cm.PeerID
	Name string // in its certificate
	Is   config.Peer
	At   netip.AddrPort // where it is now
	Mail *PeerMail      // takes the news of its link

	path peerPath
	move move
}

// LinkChange says what is to become of the link to a peer.
type LinkChange struct {
	*Peer
	Gone bool // the link ends, after the messages of the same Step
}

func newPeers(k *Core) *Peers {
	return &Peers{core: k, byName: map[string]*Peer{}, byID: map[cm.PeerID]*Peer{}, owners: config.OwnersOf(k.cfg.NIC.CM.Name, nil)}
}

// Len returns the number of peers.
func (p *Peers) Len() int { return len(p.list) }

// List returns the peers as they are configured. The caller must not change it.
func (p *Peers) List() []config.Peer { return p.list }

// Find returns a peer by its name, or nil.
func (p *Peers) Find(name string) *Peer { return p.byName[name] }

// Add adds a peer.
func (p *Peers) Add(now vtime.Time, c config.Peer) error {
	c.Complete()
	if p.byName[c.Name] != nil {
		return fmt.Errorf("peer %s exists already; change it (vnic peer set), or remove it first", c.Name)
	}
	return p.Set(now, append(slices.Clone(p.list), c))
}

// Change changes a peer, by its name. Its connections go on, as far as they are still allowed, unless it
// has another identity.
func (p *Peers) Change(now vtime.Time, c config.Peer) error {
	c.Complete()
	i := slices.IndexFunc(p.list, func(o config.Peer) bool { return o.Name == c.Name })
	if i < 0 {
		return p.unknown(c.Name)
	}
	list := slices.Clone(p.list)
	list[i] = c
	return p.Set(now, list)
}

// Remove removes a peer with its link, connections, tunnels and keys.
func (p *Peers) Remove(now vtime.Time, name string) error {
	if p.byName[name] == nil {
		return p.unknown(name)
	}
	return p.Set(now, slices.DeleteFunc(slices.Clone(p.list), func(c config.Peer) bool { return c.Name == name }))
}

func (p *Peers) unknown(name string) error {
	if len(p.list) == 0 {
		return fmt.Errorf("peer %s: this NIC has no peers; vnic peer add adds one", name)
	}
	return fmt.Errorf("unknown peer %s; this NIC's peers are %s (vnic peer list)", name, strings.Join(p.names(), ", "))
}

func (p *Peers) names() (list []string) {
	for i := range p.list {
		list = append(list, p.list[i].Name)
	}
	return list
}

// operate carries out an operator's change. The peer is this NIC's own from then on.
func (p *Peers) operate(now vtime.Time, c *control.PeerChange) error {
	err := p.carryOut(now, c)
	if err == nil {
		p.own(c.Name)
	}
	return err
}

func (p *Peers) carryOut(now vtime.Time, c *control.PeerChange) error {
	if c.Name == "" {
		return errors.New("the peer's name is missing; give the name in its certificate")
	}
	switch c.Action {
	case "add":
		is := config.Peer{Name: c.Name}
		if err := edit(&is, c); err != nil {
			return err
		}
		return p.Add(now, is)
	case "set":
		peer := p.Find(c.Name)
		if peer == nil {
			return p.unknown(c.Name)
		}
		is := peer.Is
		if err := edit(&is, c); err != nil {
			return err
		}
		return p.Change(now, is)
	case "remove":
		return p.Remove(now, c.Name)
	}
	return fmt.Errorf("unknown action %q; use add, set or remove", c.Action)
}

// edit applies what an operator gives to a peer.
func edit(to *config.Peer, c *control.PeerChange) (err error) {
	if c.Host != nil {
		to.Host = *c.Host
	}
	if c.Identity != nil {
		to.Identity = *c.Identity
	}
	if c.Underlay != nil {
		if err = to.Underlay.UnmarshalText([]byte(*c.Underlay)); err != nil {
			return fmt.Errorf("peer %s: underlay: %w", c.Name, err)
		}
	}
	if c.CM != nil && *c.CM == "" {
		to.CM = netip.AddrPort{}
	} else if c.CM != nil {
		if to.CM, err = netip.ParseAddrPort(*c.CM); err != nil {
			return fmt.Errorf("peer %s: cm %q: write its cm.listen, as 192.0.2.2:7471", c.Name, *c.CM)
		}
	}
	if c.Tenants != nil {
		to.Tenants = *c.Tenants
	}
	if c.Addresses != nil {
		to.Functions = nil
		for _, a := range *c.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				return fmt.Errorf("peer %s: address %q of tenant %d: write it as 192.168.100.21", c.Name, a.Address, a.Tenant)
			}
			to.Functions = append(to.Functions, config.PeerFunction{Tenant: a.Tenant, Address: addr})
		}
	}
	return nil
}

// Set replaces the list of peers: it removes those that are not in it, changes those that differ and
// adds those that are new. A peer with another identity is another NIC: the old one is removed, and the
// new one added. If the list is not good, nothing changes.
func (p *Peers) Set(now vtime.Time, list []config.Peer) error {
	list = slices.Clone(list)
	for i := range list {
		list[i].Complete()
	}
	if err := p.Check(list); err != nil {
		return err
	}
	p.set(now, list)
	return nil
}

// Check returns why Set would refuse a list.
func (p *Peers) Check(list []config.Peer) error {
	if err := p.core.cfg.NIC.CheckPeers(list); err != nil {
		return err
	}
	return p.core.Functions.CheckPeers(list)
}

// set is Set with a list that was checked.
func (p *Peers) set(now vtime.Time, list []config.Peer) {
	k := p.core
	k.Manager.Run(now) // what was decided for the peers as they were
	stay := map[string]bool{}
	for i := range list {
		was := p.byName[list[i].Name]
		stay[list[i].Name] = was == nil || was.Is.Identity == list[i].Identity
	}
	for _, name := range p.names() {
		if !stay[name] {
			p.remove(now, p.byName[name])
		}
	}
	regranted := !slices.EqualFunc(p.list, list, func(a, b config.Peer) bool {
		return a.Name == b.Name && slices.Equal(a.Functions, b.Functions)
	})
	p.list, p.owners = list, config.OwnersOf(k.cfg.NIC.CM.Name, list)
	k.Functions.SetPeers(list)
	for i := range list {
		c := &list[i]
		var err error
		switch peer := p.byName[c.Name]; {
		case peer == nil:
			err = p.add(c)
		case !reflect.DeepEqual(peer.Is, *c):
			err = p.change(now, peer, c)
		}
		if err != nil { // Check knows the same limits
			k.cfg.Log(now, slog.LevelError, "peer not added or changed", "peer", c.Name, "err", err)
		}
	}
	if regranted {
		k.Manager.CM.Review(now)
	}
	k.Manager.Run(now)
}

func (p *Peers) add(c *config.Peer) error {
	peer := &Peer{ID: p.nextID(), Name: c.Name, Is: *c, At: c.Underlay.AddrPort}
	if err := p.core.Manager.CM.AddPeer(p.describe(peer)); err != nil {
		return err
	}
	peer.Mail = p.core.newMail(peer.ID)
	p.byName[peer.Name], p.byID[peer.ID] = peer, peer
	at, _ := slices.BinarySearchFunc(p.sorted, peer, (*Peer).compare)
	p.sorted = slices.Insert(p.sorted, at, peer)
	p.tell(peer)
	return nil
}

func (p *Peers) change(now vtime.Time, peer *Peer, c *config.Peer) error {
	was, at := peer.Is, peer.At
	if peer.Is = *c; was.Underlay != c.Underlay {
		peer.At = c.Underlay.AddrPort
		p.core.endMove(peer, now)
	}
	if err := p.core.Manager.CM.ChangePeer(now, p.describe(peer)); err != nil {
		peer.Is, peer.At = was, at
		return err
	}
	p.tell(peer)
	p.core.pathChanged(peer.ID)
	return nil
}

func (p *Peers) remove(now vtime.Time, peer *Peer) {
	k := p.core
	peer.Mail.Close()
	k.endMove(peer, now)
	k.Manager.CM.RemovePeer(now, peer.ID)
	k.Manager.Run(now)
	delete(p.byName, peer.Name)
	delete(p.byID, peer.ID)
	at, _ := slices.BinarySearchFunc(p.sorted, peer, (*Peer).compare)
	p.sorted = slices.Delete(p.sorted, at, at+1)
	for _, l := range k.shards {
		l.tell(func(to Orders, _ vtime.Time) {
			to.RemovePeer(peer.ID)
			delete(l.refused, peer.ID)
		})
	}
	k.links = append(k.links, LinkChange{peer, true})
}

// nextID returns an ID that no peer has.
func (p *Peers) nextID() cm.PeerID {
	for {
		if p.last++; p.last > cm.MaxPeerID {
			p.last = 1
		}
		if p.byID[p.last] == nil {
			return p.last
		}
	}
}

// describe returns a peer as the connection manager sees it.
func (p *Peers) describe(peer *Peer) cm.Peer {
	c := &peer.Is
	return cm.Peer{ID: peer.ID, Name: peer.Name, Host: c.Host, Underlay: peer.At, Tenants: c.Tenants, MayHave: func(a cm.Address) string {
		return p.owners.Refuses(peer.Name, a.Tenant, a.IP())
	}}
}

// tell informs the shards and the link of a new or changed peer.
func (p *Peers) tell(peer *Peer) {
	p.place(peer)
	p.core.links = append(p.core.links, LinkChange{Peer: peer})
}

// place tells the shards where a peer is.
func (p *Peers) place(peer *Peer) {
	id, name, at, anywhere := peer.ID, peer.Name, peer.At, peer.Is.Underlay.Anywhere()
	p.core.all(func(to Orders, _ vtime.Time) { to.SetPeer(id, name, at, anywhere) })
}

// compare orders peers by their names, numbers first.
func (p *Peer) compare(o *Peer) int {
	return cmp.Or(cmp.Compare(len(p.Name), len(o.Name)), cmp.Compare(p.Name, o.Name))
}

package directory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// follow has a NIC of the simulation do with functions what a real one does: it takes those that are
// moved to it, unless it cannot, and gives up those that others have.
func (n *nic) follow(cannot bool) {
	view := n.session.View
	self := &Self{Name: n.name, Functions: n.record.Functions}
	before := Encode(n.record)
	for _, moved := range view.Outgoing(self) {
		self.GiveUp(&moved)
	}
	n.record.Functions = self.Functions
	problems := map[string]string{}
	for _, m := range view.Incoming(self) {
		if cannot {
			problems[m.Function] = "it cannot"
			continue
		}
		n.record.Functions = append(slices.Clone(n.record.Functions), Function{Name: m.Function, Tenant: m.Tenant, Addresses: m.Addresses})
	}
	if n.record.Problems = nil; len(problems) > 0 {
		n.record.Problems = problems
	}
	if Encode(n.record) != before {
		n.session.Record(n.record)
	}
}

// moves writes the grants of two hosts so that the function of the first goes to the second, or stays.
func (w *world) moves(from, to *nic, at netip.Addr, moving bool) {
	m := Move{Function: "pf0.vf9", Tenant: 1, Addresses: []netip.Addr{at}, From: from.name, Moving: moving}
	w.put(GrantKey(testPrefix, from.name), Encode(Grant{Allow: []Allowed{}}), 0)
	w.revision-- // both in one transaction
	w.put(GrantKey(testPrefix, to.name), Encode(Grant{Allow: []Allowed{{Tenant: 1, Addresses: []netip.Addr{at, addressOf(slices.Index(w.nics, to))}}}, Moves: []Move{m}}), 0)
}

// TestWhatMovesIsSomewhereAtAllTimes: while a function moves, every NIC sends to a host that has it: to
// the old one until the new one has said that it has it, then to the new one. That holds if NICs lose etcd
// meanwhile, too. The old host gives the function up only when it has seen that.
func TestWhatMovesIsSomewhereAtAllTimes(t *testing.T) {
	for _, s := range seeds(40) {
		t.Run(fmt.Sprint("seed ", s), func(t *testing.T) {
			w := newWorld(t, s, 5)
			w.run(5 * time.Second)
			w.settled()
			from, to, at := w.nics[0], w.nics[1], addressOf(0)
			w.faulty = w.chance(0.5)
			w.moves(from, to, at, true)
			for i := range 3000 {
				w.run(time.Millisecond)
				for _, n := range w.nics {
					if !n.session.Changed() && (n != to || i > 100) { // it looks again when it has taken something, too
						continue
					}
					n.follow(false)
					n.step()
					if n == to {
						continue // it has the function itself, sooner or later
					}
					has := func(list []Function) bool {
						return slices.ContainsFunc(list, func(f Function) bool { return slices.Contains(f.Addresses, at) })
					}
					if n == from {
						if !has(n.record.Functions) && !has(n.session.View.Host(to.name).Functions) {
							t.Fatalf("at %v nobody has the function", time.Duration(w.now))
						}
						continue
					}
					peers, _ := n.session.View.Peers(&Self{Name: n.name, Functions: n.record.Functions})
					owners := 0
					for _, p := range peers {
						for _, f := range p.Functions {
							if f.Address == at {
								owners++
							}
						}
					}
					if owners != 1 {
						t.Fatalf("at %v %s sends to %d hosts", time.Duration(w.now), n.name, owners)
					}
				}
			}
			w.mend()
			w.run(2*silentTime + 3*LeaseTTL)
			for _, n := range w.nics {
				n.follow(false)
				n.step()
			}
			w.run(time.Second)
			if len(from.record.Functions) != 0 || len(to.record.Functions) != 2 {
				t.Errorf("%+v, %+v", from.record, to.record)
			}
		})
	}
}

// TestWhatIsNotTakenStays: a function whose new host cannot take it stays at the old one, and the new one
// says why.
func TestWhatIsNotTakenStays(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.run(5 * time.Second)
	w.moves(w.nics[0], w.nics[1], addressOf(0), true)
	for range 100 {
		w.run(10 * time.Millisecond)
		for i, n := range w.nics {
			n.follow(i == 1)
			n.step()
		}
	}
	if h := w.nics[2].session.View.Host("h2"); !maps.Equal(h.Problems, map[string]string{"pf0.vf9": "it cannot"}) {
		t.Error(h.Problems)
	}
	if len(w.nics[0].record.Functions) != 1 {
		t.Error(w.nics[0].record)
	}
	// Once the move is over, only the new host has it, if it has it.
	w.moves(w.nics[0], w.nics[1], addressOf(0), false)
	w.run(time.Second)
	w.nics[0].follow(false)
	if len(w.nics[0].record.Functions) != 0 {
		t.Error(w.nics[0].record)
	}
}

// TestAHostIsAPeerBeforeItHasWhatMovesToIt: it has links with the hosts of the tenant, and nothing there.
func TestAHostIsAPeerBeforeItHasWhatMovesToIt(t *testing.T) {
	v := NewView(testPrefix)
	put := func(key string, value any) {
		v.Apply(0, Record{Key: key, Value: []byte(Encode(value)), Created: 1, Modified: 1})
	}
	at := netip.MustParseAddr("10.0.0.1")
	fn := func(a string) []Function {
		return []Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{netip.MustParseAddr(a)}}}
	}
	for i, name := range []string{"a", "b", "c"} {
		h := Host{Underlay: fmt.Sprintf("10.9.0.%d:1000", i+1), CM: "10.9.0.1:7471"}
		g := Grant{}
		switch name {
		case "a":
			h.Functions = fn("10.0.0.1")
		case "b":
			g = Grant{Allow: []Allowed{{1, []netip.Addr{at}}}, Moves: []Move{{Function: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{at}, From: "a", Moving: true}}}
		case "c":
			h.Functions, g = fn("10.0.0.3"), Grant{Allow: []Allowed{{Tenant: 1}}}
		}
		put(HostKey(testPrefix, name), h)
		put(GrantKey(testPrefix, name), g)
	}
	peers, refused := v.Peers(&Self{Name: "c", Functions: fn("10.0.0.3")})
	if len(peers) != 2 || len(peers[0].Functions) != 1 || len(peers[1].Tenants) != 1 || len(peers[1].Functions) != 0 || len(refused) != 0 {
		t.Errorf("c: %+v, %v", peers, refused)
	}
	peers, refused = v.Peers(&Self{Name: "b"})
	if len(peers) != 2 || len(peers[0].Functions) != 0 || peers[1].Name != "c" || len(refused) != 0 {
		t.Errorf("b: %+v, %v", peers, refused)
	}
	// b has taken it. a goes on with it for a while, and claims nothing that it would have to refuse b.
	put(HostKey(testPrefix, "b"), Host{Underlay: "10.9.0.2:1000", CM: "10.9.0.1:7471", Functions: fn("10.0.0.1")})
	a := &Self{Name: "a", Functions: fn("10.0.0.1"), Held: []Address{{1, at}}, Leaving: []Address{{1, at}}}
	peers, refused = v.Peers(a)
	if len(peers) != 2 || peers[0].Name != "b" || len(peers[0].Functions) != 0 || slices.ContainsFunc(refused, func(r Refusal) bool { return r.Host == "b" }) {
		t.Errorf("a: %+v, %v", peers, refused)
	}
}

// TestAHostGivesUpNothingButWhatHasMoved: it has its other functions still, of the same tenant and with the same
// address in others, and so the peers that it has them with.
func TestAHostGivesUpNothingButWhatHasMoved(t *testing.T) {
	for _, seed := range seeds(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		v, self := NewView(testPrefix), &Self{Name: "a"}
		for tenant := range uint32(3) { // each has another host
			g := Grant{Allow: []Allowed{{Tenant: tenant + 1, Addresses: []netip.Addr{addressOf(100)}}}}
			h := Host{Underlay: fmt.Sprintf("10.9.0.%d:1000", tenant+2), CM: "10.9.0.1:7471"}
			for key, value := range map[string]any{GrantKey(testPrefix, fmt.Sprint("t", tenant+1)): g, HostKey(testPrefix, fmt.Sprint("t", tenant+1)): h} {
				v.Apply(0, Record{Key: key, Value: []byte(Encode(value)), Created: 1, Modified: 1})
			}
		}
		for i := range 1 + rng.IntN(5) {
			f := Function{Name: fmt.Sprint("pf0.vf", i+1), Tenant: uint32(1 + rng.IntN(3))}
			for range 1 + rng.IntN(2) {
				at := Address{f.Tenant, addressOf(rng.IntN(4))}
				if !slices.Contains(self.Held, at) {
					f.Addresses, self.Held = append(f.Addresses, at.Addr), append(self.Held, at)
				}
			}
			if len(f.Addresses) > 0 {
				self.Functions = append(self.Functions, f)
			}
		}
		functions, held := slices.Clone(self.Functions), slices.Clone(self.Held)
		before := *self
		gone := rng.IntN(len(functions))
		self.GiveUp(&functions[gone])

		var rest []Function
		var addresses []Address
		var peers []string
		for i, f := range functions {
			if i == gone {
				continue
			}
			rest = append(rest, f)
			for _, a := range f.Addresses {
				addresses = append(addresses, Address{f.Tenant, a})
			}
			if name := fmt.Sprint("t", f.Tenant); !slices.Contains(peers, name) {
				peers = append(peers, name)
			}
		}
		same := func(a, b Function) bool {
			return a.Name == b.Name && a.Tenant == b.Tenant && slices.Equal(a.Addresses, b.Addresses)
		}
		if !slices.EqualFunc(self.Functions, rest, same) || !slices.Equal(self.Held, addresses) {
			t.Errorf("seed %d: of %+v it gave up %s and has %+v with %v", seed, functions, functions[gone].Name, self.Functions, self.Held)
		}
		if !slices.EqualFunc(before.Functions, functions, same) || !slices.Equal(before.Held, held) {
			t.Errorf("seed %d: the lists of before changed", seed)
		}
		var has []string
		list, _ := v.Peers(self)
		for _, p := range list {
			has = append(has, p.Name)
		}
		if slices.Sort(peers); !slices.Equal(has, peers) {
			t.Errorf("seed %d: its peers are %v, want %v", seed, has, peers)
		}
	}
}

package directory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// View is what is known of a fleet: the records as etcd has them, and the last records of hosts that are
// gone. It decides who has what; the same records make the same decisions on every NIC.
type View struct {
	prefix    string
	hosts     map[string]*hostRecord
	grants    map[string]*grantRecord
	certs     map[string]string
	authority string
	unread    map[string]string // keys that cannot be read, and why
	gone      int               // hosts whose record is gone
}

// Record is a key with its value, as etcd has it.
type Record struct {
	Key      string
	Value    []byte // nil: it was deleted
	Created  int64  // revision at which the key was created
	Modified int64  // revision of this value
}

type hostRecord struct {
	Host
	created, modified int64
	gone              vtime.Time // when the record vanished; vtime.Never: it is there
}

type grantRecord struct {
	Grant
	created int64
}

// NewView returns an empty view of the fleet under a prefix.
func NewView(prefix string) *View {
	v := &View{prefix: prefix, hosts: map[string]*hostRecord{}}
	v.clear()
	return v
}

func (v *View) clear() {
	v.grants, v.certs, v.unread, v.authority = map[string]*grantRecord{}, map[string]string{}, map[string]string{}, ""
}

// Replace takes over a whole list. Hosts that are not in it are gone from now on.
func (v *View) Replace(now vtime.Time, list []Record) {
	v.clear()
	there := map[string]bool{}
	for _, r := range list {
		there[r.Key] = true
		v.Apply(now, r)
	}
	for name, h := range v.hosts {
		if !there[HostKey(v.prefix, name)] {
			v.leave(h, now)
		}
	}
}

// leave notes that the record of a host is gone.
func (v *View) leave(h *hostRecord, now vtime.Time) {
	if h.gone == vtime.Never {
		h.gone = now
		v.gone++
	}
}

// Apply takes over a change.
func (v *View) Apply(now vtime.Time, r Record) {
	delete(v.unread, r.Key)
	rest, ok := strings.CutPrefix(r.Key, v.prefix)
	if !ok {
		return
	}
	var err error
	if name, ok := strings.CutPrefix(rest, hostsPart); ok {
		err = v.applyHost(now, name, &r)
	} else if name, ok := strings.CutPrefix(rest, grantsPart); ok {
		err = v.applyGrant(name, &r)
	} else if name, ok := strings.CutPrefix(rest, certsPart); ok {
		if v.certs[name] = string(r.Value); r.Value == nil {
			delete(v.certs, name)
		}
	} else if rest == authority {
		v.authority = string(r.Value)
	}
	if err != nil {
		v.unread[r.Key] = err.Error()
	}
}

func (v *View) applyHost(now vtime.Time, name string, r *Record) error {
	if r.Value == nil {
		if h := v.hosts[name]; h != nil {
			v.leave(h, now)
		}
		return nil
	}
	h, err := ParseHost(r.Value)
	if err != nil {
		return err // what was there stays: a host that writes nonsense harms itself alone
	}
	if was := v.hosts[name]; was != nil && was.gone != vtime.Never {
		v.gone--
	}
	v.hosts[name] = &hostRecord{h, r.Created, r.Modified, vtime.Never}
	return nil
}

func (v *View) applyGrant(name string, r *Record) error {
	delete(v.grants, name)
	if r.Value == nil {
		return nil
	}
	g, err := ParseGrant(r.Value)
	if err == nil {
		v.grants[name] = &grantRecord{g, r.Created}
	}
	return err
}

// Forget drops hosts whose records are gone since before a time.
func (v *View) Forget(before vtime.Time) (some bool) {
	n := len(v.hosts)
	maps.DeleteFunc(v.hosts, func(_ string, h *hostRecord) bool { return h.gone < before })
	v.gone -= n - len(v.hosts)
	return len(v.hosts) != n
}

// firstGone returns when the first record vanished of those that are gone; vtime.Never: none is.
func (v *View) firstGone() vtime.Time {
	first := vtime.Never
	if v.gone == 0 {
		return first
	}
	for _, h := range v.hosts {
		first = min(first, h.gone)
	}
	return first
}

// Grant returns what a host may claim, or nil.
func (v *View) Grant(name string) *Grant {
	if g := v.grants[name]; g != nil {
		return &g.Grant
	}
	return nil
}

// Certificate returns a host's newest certificate, as PEM; "": there is none.
func (v *View) Certificate(name string) string { return v.certs[name] }

// Authority returns what the fleet trusts.
func (v *View) Authority() (Authority, error) { return ParseAuthority([]byte(v.authority)) }

// Host returns what a host says of itself, or nil.
func (v *View) Host(name string) *Host {
	if h := v.hosts[name]; h != nil {
		return &h.Host
	}
	return nil
}

// Names lists all hosts that have a record or a grant.
func (v *View) Names() []string {
	all := map[string]bool{}
	for name := range v.hosts {
		all[name] = true
	}
	for name := range v.grants {
		all[name] = true
	}
	return slices.SortedFunc(maps.Keys(all), compareNames)
}

// compareNames orders names for people: h2 comes before h10.
func compareNames(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// Peer is a host with what it has.
type Peer struct {
	Name      string
	Underlay  netip.AddrPort
	CM        netip.AddrPort
	Addresses []Address // that it claims and has
	Granted   []Address // further ones, which are granted to it by name and which it does not claim
	Coming    []uint32  // tenants of functions that move to it
	Gone      bool      // its record is gone; what it was counts for a while
}

// Refusal is a claim that is not believed, or a record that cannot be used.
type Refusal struct {
	Host  string `json:"host"`
	What  string `json:"what"` // an address, or what else it claims; "": all of its record
	Why   string `json:"why"`
	Place string `json:"key,omitempty"`
}

func (r Refusal) String() string {
	return strings.Join(slices.DeleteFunc([]string{r.Host, r.What, r.Why}, func(s string) bool { return s == "" }), ": ")
}

// claims records who has what while Decide looks at one host after the other.
type claims struct {
	granted map[Address]string // by name, to one host alone
	twice   []Refusal          // what is granted to two
	has     map[Address]string // by the first that claims it, where a whole tenant is granted
	at      map[netip.AddrPort]string
}

// Decide returns the hosts with what is theirs, in the order of their names, and what is refused. An
// address that is granted by name is for that host alone; where a whole tenant is granted, the host
// whose record is older has an address that two claim, and one whose record is gone comes last.
func (v *View) Decide() (peers []Peer, refused []Refusal) {
	c := claims{has: map[Address]string{}, at: map[netip.AddrPort]string{}}
	c.granted, c.twice = v.grantedByName()
	refused = append(refused, c.twice...)
	for _, key := range slices.Sorted(maps.Keys(v.unread)) {
		rest := strings.TrimPrefix(key, v.prefix)
		_, name, _ := strings.Cut(rest, "/")
		refused = append(refused, Refusal{name, "", "cannot be read: " + v.unread[key], key})
	}
	for _, name := range v.inOrder() {
		if p, ok := v.decide(name, &c, &refused); ok {
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int { return compareNames(a.Name, b.Name) })
	return peers, refused
}

// inOrder lists the hosts that have a record. What two of them claim is the first one's.
func (v *View) inOrder() []string {
	return slices.SortedFunc(maps.Keys(v.hosts), func(a, b string) int {
		x, y := v.hosts[a], v.hosts[b]
		if there, also := x.gone == vtime.Never, y.gone == vtime.Never; there != also {
			if there {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.created, y.created), cmp.Compare(a, b))
	})
}

// grantedByName returns which host each address is granted to. If two are granted one, the older grant
// counts. What moves is granted to the host it comes from until the other one has it: so it is somewhere
// at all times, and if it is never taken, it stays where it was.
func (v *View) grantedByName() (to map[Address]string, twice []Refusal) {
	to = map[Address]string{}
	order := slices.SortedFunc(maps.Keys(v.grants), func(a, b string) int {
		return cmp.Or(cmp.Compare(v.grants[a].created, v.grants[b].created), cmp.Compare(a, b))
	})
	for _, name := range order {
		g := v.grants[name]
		if g.Revoked {
			continue
		}
		for _, t := range g.Allow {
			for _, a := range t.Addresses {
				at := Address{t.Tenant, a}
				if first, taken := to[at]; taken {
					twice = append(twice, Refusal{name, at.String(), "it is granted to " + first + ", too, which was granted something before: drop one of the two (vnic fleet allow --drop)", GrantKey(v.prefix, name)})
					continue
				}
				to[at] = name
			}
		}
	}
	for name, g := range v.grants {
		for _, m := range g.Moves {
			for _, a := range m.Addresses {
				if at := (Address{m.Tenant, a}); to[at] == name && v.isAtSource(name, &m) {
					to[at] = m.From
				}
			}
		}
	}
	return to, twice
}

// isAtSource reports whether a function is still at the host from which it moves to another one.
func (v *View) isAtSource(to string, m *Move) bool {
	at := func(name string) bool {
		h := v.hosts[name]
		return h != nil && h.gone == vtime.Never && m.Among(h.Functions)
	}
	return m.Moving && m.From != to && at(m.From) && !at(to)
}

func (v *View) decide(name string, c *claims, refused *[]Refusal) (p Peer, ok bool) {
	h := v.hosts[name]
	key := HostKey(v.prefix, name)
	refuse := func(what, why string) { *refused = append(*refused, Refusal{name, what, why, key}) }
	g := v.grants[name]
	switch {
	case g == nil:
		refuse("", "nobody granted it anything: vnic fleet grant "+name)
		return p, false
	case g.Revoked:
		return p, false
	}
	p = Peer{Name: name, Gone: h.gone != vtime.Never}
	var err error
	if p.Underlay, err = netip.ParseAddrPort(h.Underlay); err != nil {
		refuse("", fmt.Sprintf("underlay %q is not an address with a port", h.Underlay))
		return p, false
	}
	if p.CM, err = netip.ParseAddrPort(h.CM); err != nil {
		refuse("", fmt.Sprintf("cm %q is not an address with a port", h.CM))
		return p, false
	}
	if first, taken := c.at[p.Underlay]; taken && !p.Underlay.Addr().IsUnspecified() {
		refuse("underlay "+h.Underlay, "it is that of "+first)
		return p, false
	}
	c.at[p.Underlay] = name
	for _, f := range h.Functions {
		for _, a := range f.Addresses {
			at := Address{f.Tenant, a}
			if why := c.take(name, g, at); why != "" {
				refuse(at.String()+" of "+f.Name, why)
				continue
			}
			p.Addresses = append(p.Addresses, at)
		}
	}
	for _, t := range g.Allow {
		for _, a := range t.Addresses {
			switch at := (Address{t.Tenant, a}); {
			case c.granted[at] == name && c.has[at] != name:
				p.Granted = append(p.Granted, at)
			case c.granted[at] != name && !slices.Contains(p.Coming, t.Tenant) && g.incoming(at):
				p.Coming = append(p.Coming, t.Tenant)
			}
		}
	}
	return p, true
}

// take gives an address to a host, or returns why not.
func (c *claims) take(name string, g *grantRecord, at Address) (why string) {
	to, byName := c.granted[at]
	switch {
	case byName && to != name:
		return "it is granted to " + to
	case !byName && !g.whole(at.Tenant):
		return "it is not granted: vnic fleet allow " + name + " " + at.String()
	}
	if first, taken := c.has[at]; taken {
		if first == name {
			return "it is listed twice"
		}
		return first + " claimed it before"
	}
	c.has[at] = name
	return ""
}

package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Bounds of records. Others can write them, so what is beyond is refused.
const (
	MaxRecord    = 256 << 10 // bytes
	maxFunctions = 4096
	maxAddresses = 64 // of a function
	maxAllowed   = 4096
)

// Parts of the tree under the prefix.
const (
	hostsPart  = "hosts/"
	grantsPart = "grants/"
	certsPart  = "certs/"
	renewPart  = "renew/"
	authority  = "authority"
)

// Prefix returns the prefix of a fleet's keys in its proper form: it ends in one slash.
func Prefix(s string) string { return strings.TrimRight(s, "/") + "/" }

// Aside returns the prefix of what hosts may not read: it is beside the tree, not in it, so that one
// permission and one watch are for the whole tree.
func Aside(prefix string) string { return strings.TrimRight(prefix, "/") + "-join/" }

// The keys of a fleet.
func HostKey(prefix, name string) string  { return prefix + hostsPart + name }
func GrantKey(prefix, name string) string { return prefix + grantsPart + name }
func RenewKey(prefix, name string) string { return prefix + renewPart + name }
func CertKey(prefix, name string) string  { return prefix + certsPart + name }
func AuthorityKey(prefix string) string   { return prefix + authority }

// Address is an address of a tenant.
type Address struct {
	Tenant uint32     `json:"tenant"`
	Addr   netip.Addr `json:"address"`
}

func (a Address) String() string { return fmt.Sprintf("%d:%s", a.Tenant, a.Addr) }

// ParseAddress reads TENANT:ADDRESS.
func ParseAddress(s string) (Address, error) {
	tenant, addr, _ := strings.Cut(s, ":")
	t, err := strconv.ParseUint(tenant, 10, 32)
	a := Address{Tenant: uint32(t)}
	if err == nil {
		a.Addr, err = netip.ParseAddr(addr)
	}
	if err == nil {
		err = checkAddresses(a.Tenant, []netip.Addr{a.Addr})
	}
	if err != nil {
		return a, fmt.Errorf("%q: write TENANT:ADDRESS, as 1:192.168.100.21", s)
	}
	return a, nil
}

// Host is what a host says of itself.
type Host struct {
	Instance  string     `json:"instance"` // differs for each start of a NIC: two NICs of one name show
	Underlay  string     `json:"underlay"`
	CM        string     `json:"cm"`
	Version   string     `json:"version"`
	Functions []Function `json:"functions"`

	Authority   string            `json:"authority,omitempty"`   // that signed the certificate it uses: serial number
	Authorities []string          `json:"authorities,omitempty"` // that it trusts
	Problems    map[string]string `json:"problems,omitempty"`    // functions that were moved here and that it could not take: why
}

// Function is a function of a host with the addresses that peers reach it by.
type Function struct {
	Name      string       `json:"name"` // pf0.vf1
	MAC       string       `json:"mac"`
	Tenant    uint32       `json:"tenant"`
	Addresses []netip.Addr `json:"addresses"`
}

// Grant is what a host may claim.
type Grant struct {
	Allow   []Allowed `json:"allow"`
	Moves   []Move    `json:"take,omitempty"`    // functions that were moved here, or are being moved
	Revoked bool      `json:"revoked,omitempty"` // it may claim nothing
}

// Allowed is a tenant that a host may use.
type Allowed struct {
	Tenant    uint32       `json:"tenant"`
	Addresses []netip.Addr `json:"addresses,omitempty"` // none: any that no other host is granted or has
}

// Move is a function that was moved to a host, or is being moved there. The host gives it these settings.
type Move struct {
	Function  string       `json:"function"` // of the host, pf0.vf1
	MAC       string       `json:"mac"`
	Tenant    uint32       `json:"tenant"`
	Addresses []netip.Addr `json:"addresses"`
	From      string       `json:"from"`             // host it came from
	Moving    bool         `json:"moving,omitempty"` // From has it until this host has taken it

	Set map[string]string `json:"set,omitempty"` // further settings there, as for vnic vf set
}

// Authority is what the fleet trusts.
type Authority struct {
	Roots     string `json:"roots"`               // certificates, PEM; the first one signs
	Signature []byte `json:"signature,omitempty"` // of Roots, by one that was trusted before; none: they are the first
	Revoked   string `json:"revoked"`             // list of revoked certificates, PEM; "": none
}

// Encode returns the text of a record.
func Encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types are ours
	}
	return string(b)
}

func decode(b []byte, v any) error {
	if len(b) > MaxRecord {
		return fmt.Errorf("%d bytes long, at most %d", len(b), MaxRecord)
	}
	return json.NewDecoder(bytes.NewReader(b)).Decode(v)
}

// ParseHost reads the record of a host.
func ParseHost(b []byte) (h Host, err error) {
	if err := decode(b, &h); err != nil {
		return h, err
	}
	if len(h.Functions) > maxFunctions {
		return h, fmt.Errorf("%d functions, at most %d", len(h.Functions), maxFunctions)
	}
	for _, f := range h.Functions {
		if len(f.Addresses) > maxAddresses {
			return h, fmt.Errorf("function %s has %d addresses, at most %d", f.Name, len(f.Addresses), maxAddresses)
		}
		if err := checkAddresses(f.Tenant, f.Addresses); err != nil {
			return h, fmt.Errorf("function %s: %w", f.Name, err)
		}
	}
	return h, nil
}

// ParseGrant reads a grant.
func ParseGrant(b []byte) (g Grant, err error) {
	if err := decode(b, &g); err != nil {
		return g, err
	}
	for _, a := range g.Allow {
		if len(a.Addresses) > maxAllowed {
			return g, fmt.Errorf("tenant %d: %d addresses, at most %d", a.Tenant, len(a.Addresses), maxAllowed)
		}
		if err := checkAddresses(a.Tenant, a.Addresses); err != nil {
			return g, err
		}
	}
	return g, nil
}

func checkAddresses(tenant uint32, list []netip.Addr) error {
	if tenant == 0 {
		return errors.New("tenant 0 is none")
	}
	for _, a := range list {
		if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
			return fmt.Errorf("%q is not an address of a tenant", a)
		}
	}
	return nil
}

// Allows reports whether a grant allows an address: by name, or with its whole tenant.
func (g *Grant) Allows(a Address) bool {
	return slices.ContainsFunc(g.Allow, func(t Allowed) bool {
		return t.Tenant == a.Tenant && (len(t.Addresses) == 0 || slices.Contains(t.Addresses, a.Addr))
	})
}

// incoming reports whether an address is that of a function that is being moved to the host.
func (g *Grant) incoming(a Address) bool {
	return slices.ContainsFunc(g.Moves, func(m Move) bool {
		return m.Moving && m.Tenant == a.Tenant && slices.Contains(m.Addresses, a.Addr)
	})
}

// Among reports whether the function is one of these: one of them has its first address.
func (m *Move) Among(list []Function) bool {
	return len(m.Addresses) > 0 && slices.ContainsFunc(list, func(f Function) bool {
		return f.Tenant == m.Tenant && slices.Contains(f.Addresses, m.Addresses[0])
	})
}

// whole reports whether a whole tenant is granted.
func (g *Grant) whole(tenant uint32) bool {
	return slices.ContainsFunc(g.Allow, func(t Allowed) bool { return t.Tenant == tenant && len(t.Addresses) == 0 })
}

// Named reports whether an address is granted by name.
func (g *Grant) Named(a Address) bool {
	return slices.ContainsFunc(g.Allow, func(t Allowed) bool { return t.Tenant == a.Tenant && slices.Contains(t.Addresses, a.Addr) })
}

// Add allows an address; an invalid one: any of the tenant.
func (g *Grant) Add(a Address) {
	if !a.Addr.IsValid() {
		if !g.whole(a.Tenant) {
			g.Allow = append(g.Allow, Allowed{Tenant: a.Tenant})
		}
		return
	}
	i := slices.IndexFunc(g.Allow, func(t Allowed) bool { return t.Tenant == a.Tenant && len(t.Addresses) > 0 })
	switch {
	case i < 0:
		g.Allow = append(g.Allow, Allowed{Tenant: a.Tenant, Addresses: []netip.Addr{a.Addr}})
	case !slices.Contains(g.Allow[i].Addresses, a.Addr):
		g.Allow[i].Addresses = append(slices.Clone(g.Allow[i].Addresses), a.Addr)
	}
}

// Drop takes an address from a grant; an invalid one: the tenant with all that is granted of it.
func (g *Grant) Drop(a Address) {
	g.Allow = slices.DeleteFunc(slices.Clone(g.Allow), func(t Allowed) bool { return t.Tenant == a.Tenant && !a.Addr.IsValid() })
	for i := range g.Allow {
		if t := &g.Allow[i]; t.Tenant == a.Tenant && len(t.Addresses) > 0 {
			t.Addresses = slices.DeleteFunc(slices.Clone(t.Addresses), func(b netip.Addr) bool { return b == a.Addr })
			if len(t.Addresses) == 0 {
				g.Allow = slices.Delete(g.Allow, i, i+1)
				return
			}
		}
	}
}

// ParseAuthority reads what the fleet trusts.
func ParseAuthority(b []byte) (a Authority, err error) {
	err = decode(b, &a)
	return a, err
}

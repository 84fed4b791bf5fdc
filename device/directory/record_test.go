package directory

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestAnAddressIsATenantAndAnAddress: what else there is in it is refused, and what is accepted can be
// granted: every NIC can read that grant.
func TestAnAddressIsATenantAndAnAddress(t *testing.T) {
	for text, ok := range map[string]bool{
		"1:192.168.100.21": true, "4294967295:10.0.0.1": true, "7:fd00::1": true, "7:::1": true,
		"": false, "1": false, "192.168.100.21": false, "1:": false, ":10.0.0.1": false, "0:10.0.0.1": false, "-1:10.0.0.1": false,
		"4294967296:10.0.0.1": false, "7x:10.0.0.1": false, "7 :10.0.0.1": false, "+7:10.0.0.1": false, "7:10.0.0.1/24": false, "7:10.0.0": false, "7:fe80::1%eth0": false, "7:::ffff:10.0.0.1": false,
	} {
		a, err := ParseAddress(text)
		if (err == nil) != ok {
			t.Errorf("%q: %v, %v", text, a, err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), "write TENANT:ADDRESS") {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if a.String() != text {
			t.Errorf("%q is %s", text, a)
		}
		var g Grant
		g.Add(a)
		if read, err := ParseGrant([]byte(Encode(g))); err != nil || !read.Allows(a) || !read.Named(a) {
			t.Errorf("%q in a grant: %+v, %v", text, read, err)
		}
	}
}

// TestAGrantGrowsAndShrinksByAddresses: each is in it once. A whole tenant stands beside the addresses that are
// granted of it by name, and goes with them.
func TestAGrantGrowsAndShrinksByAddresses(t *testing.T) {
	a, b, other := Address{7, netip.MustParseAddr("10.0.0.1")}, Address{7, netip.MustParseAddr("10.0.0.2")}, Address{8, netip.MustParseAddr("10.0.0.1")}
	whole := Address{Tenant: 7}
	var g Grant
	is := func(what string, named []Address, not ...Address) {
		t.Helper()
		for _, x := range named {
			if !g.Named(x) || !g.Allows(x) {
				t.Errorf("%s: %v is not granted: %+v", what, x, g)
			}
		}
		for _, x := range not {
			if g.Named(x) || g.Allows(x) {
				t.Errorf("%s: %v is granted: %+v", what, x, g)
			}
		}
	}
	g.Add(a)
	g.Add(a)
	g.Add(b)
	is("two of a tenant", []Address{a, b}, other)
	before := slices.Clone(g.Allow[0].Addresses)
	if len(g.Allow) != 1 || len(before) != 2 {
		t.Errorf("%+v", g)
	}
	g.Add(whole)
	g.Add(whole)
	third := Address{7, netip.MustParseAddr("10.0.0.3")}
	if len(g.Allow) != 2 || !g.Allows(third) || g.Named(third) {
		t.Errorf("with the whole tenant: %+v", g)
	}
	g.Drop(a)
	if g.Named(a) || !g.Allows(a) || !g.Named(b) {
		t.Errorf("one is granted with its tenant alone: %+v", g)
	}
	g.Add(other)
	g.Drop(whole)
	is("without the tenant", []Address{other}, a, b)
	g.Drop(other)
	g.Drop(other)
	if len(g.Allow) != 0 {
		t.Errorf("nothing is granted: %+v", g)
	}
}

// TestARecordBeyondItsBoundsHarmsItsHostAlone: others can write records, so each has bounds. One that cannot be read is
// told of with its key and the reason, a host's record before it counts on, and a grant counts for nothing.
func TestARecordBeyondItsBoundsHarmsItsHostAlone(t *testing.T) {
	good := Host{Instance: "1", Underlay: "10.9.0.1:1000", CM: "10.9.0.1:7471", Functions: []Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{addressOf(1)}}}}
	many := func(n int) (list []netip.Addr) {
		for i := range n {
			list = append(list, addressOf(i))
		}
		return list
	}
	with := func(f ...Function) string { h := good; h.Functions = f; return Encode(h) }
	for name, c := range map[string]struct{ text, why string }{
		"no JSON":                 {"{", "EOF"},
		"another type":            {`{"functions": 1}`, "functions"},
		"too long":                {`{"version": "` + strings.Repeat("x", MaxRecord) + `"}`, fmt.Sprint("at most ", MaxRecord)},
		"too many functions":      {with(make([]Function, maxFunctions+1)...), fmt.Sprint("at most ", maxFunctions)},
		"too many addresses":      {with(Function{Name: "pf0.vf1", Tenant: 1, Addresses: many(maxAddresses + 1)}), fmt.Sprint("function pf0.vf1 has 65 addresses, at most ", maxAddresses)},
		"no tenant":               {with(Function{Name: "pf0.vf1"}), "function pf0.vf1: tenant 0 is none"},
		"no address":              {with(Function{Name: "pf0.vf1", Tenant: 1, Addresses: make([]netip.Addr, 1)}), "is not an address of a tenant"},
		"an address with a zone":  {with(Function{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{netip.MustParseAddr("fe80::1%a")}}), `"fe80::1%a" is not an address of a tenant`},
		"IPv4 that poses as IPv6": {with(Function{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}}), "is not an address of a tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewView(testPrefix)
			v.Apply(1, Record{GrantKey(testPrefix, "h1"), []byte(Encode(Grant{Allow: []Allowed{{Tenant: 1}}})), 1, 1})
			v.Apply(1, Record{HostKey(testPrefix, "h1"), []byte(Encode(good)), 2, 2})
			v.Apply(2, Record{HostKey(testPrefix, "h1"), []byte(c.text), 2, 3})
			peers, refused := v.Decide()
			if len(refused) != 1 || refused[0].Host != "h1" || refused[0].Place != HostKey(testPrefix, "h1") || !strings.Contains(refused[0].String(), "cannot be read: ") || !strings.Contains(refused[0].Why, c.why) {
				t.Errorf("refused: %v", refused)
			}
			if len(peers) != 1 || len(peers[0].Addresses) != 1 {
				t.Errorf("the host is %+v", peers)
			}
			v.Apply(3, Record{HostKey(testPrefix, "h1"), []byte(Encode(good)), 2, 4})
			if _, refused = v.Decide(); len(refused) != 0 {
				t.Errorf("after another record: %v", refused)
			}
		})
	}
	for name, c := range map[string]struct{ text, why string }{
		"no JSON":            {"", "EOF"},
		"too many addresses": {Encode(Grant{Allow: []Allowed{{Tenant: 1, Addresses: many(maxAllowed + 1)}}}), fmt.Sprint("tenant 1: 4097 addresses, at most ", maxAllowed)},
		"no tenant":          {Encode(Grant{Allow: []Allowed{{}}}), "tenant 0 is none"},
	} {
		t.Run("grant: "+name, func(t *testing.T) {
			v := NewView(testPrefix)
			key := GrantKey(testPrefix, "h1")
			v.Apply(1, Record{HostKey(testPrefix, "h1"), []byte(Encode(good)), 1, 1})
			v.Apply(1, Record{key, []byte(Encode(Grant{Allow: []Allowed{{Tenant: 1}}})), 2, 2})
			v.Apply(2, Record{key, []byte(c.text), 2, 3})
			peers, refused := v.Decide()
			if len(peers) != 0 || v.Grant("h1") != nil || !slices.ContainsFunc(refused, func(r Refusal) bool { return r.Place == key && strings.Contains(r.Why, c.why) }) {
				t.Errorf("%+v, refused: %v", peers, refused)
			}
		})
	}
}

// TestAClaimThatIsNotBelievedIsToldWithItsReason: each with its host, and what else the host has is its own.
func TestAClaimThatIsNotBelievedIsToldWithItsReason(t *testing.T) {
	at := addressOf(1)
	whole := Grant{Allow: []Allowed{{Tenant: 1}}}
	host := func(n int, change func(*Host)) Host {
		h := Host{Instance: "1", Underlay: fmt.Sprintf("10.9.0.%d:1000", n), CM: "10.9.0.1:7471", Functions: []Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{addressOf(10 + n)}}}}
		if change != nil {
			change(&h)
		}
		return h
	}
	named := func(a netip.Addr) Grant { return Grant{Allow: []Allowed{{Tenant: 1, Addresses: []netip.Addr{a}}}} }
	for name, c := range map[string]struct {
		first, second Host
		grants        [2]Grant
		says          string
		peers         int
	}{
		"no underlay":              {host(1, nil), host(2, func(h *Host) { h.Underlay = "somewhere" }), [2]Grant{whole, whole}, `h2: underlay "somewhere" is not an address with a port`, 1},
		"no connection manager":    {host(1, nil), host(2, func(h *Host) { h.CM = "10.9.0.2" }), [2]Grant{whole, whole}, `h2: cm "10.9.0.2" is not an address with a port`, 1},
		"another host's underlay":  {host(1, nil), host(2, func(h *Host) { h.Underlay = "10.9.0.1:1000" }), [2]Grant{whole, whole}, "h2: underlay 10.9.0.1:1000: it is that of h1", 1},
		"an address twice":         {host(1, nil), host(2, func(h *Host) { h.Functions = append(h.Functions, h.Functions[0]) }), [2]Grant{whole, whole}, "it is listed twice", 2},
		"another host's address":   {host(1, func(h *Host) { h.Functions[0].Addresses[0] = at }), host(2, func(h *Host) { h.Functions[0].Addresses[0] = at }), [2]Grant{whole, whole}, "h1 claimed it before", 2},
		"one of another's by name": {host(1, nil), host(2, func(h *Host) { h.Functions[0].Addresses[0] = at }), [2]Grant{named(at), whole}, "it is granted to h1", 2},
		"one that is not granted":  {host(1, nil), host(2, nil), [2]Grant{whole, named(at)}, "it is not granted: vnic fleet allow h2 1:" + addressOf(12).String(), 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewView(testPrefix)
			for i, h := range []Host{c.first, c.second} {
				v.Apply(1, Record{GrantKey(testPrefix, hostName(i)), []byte(Encode(c.grants[i])), int64(i + 1), int64(i + 1)})
				v.Apply(1, Record{HostKey(testPrefix, hostName(i)), []byte(Encode(h)), int64(i + 3), int64(i + 3)})
			}
			peers, refused := v.Decide()
			if !slices.ContainsFunc(refused, func(r Refusal) bool { return strings.Contains(r.String(), c.says) }) {
				t.Errorf("refused: %v", refused)
			}
			if len(peers) != c.peers {
				t.Errorf("peers: %+v", peers)
			}
		})
	}

	// Two grants of one address: the one that was there first counts.
	v := NewView(testPrefix)
	for i := range 2 {
		v.Apply(1, Record{GrantKey(testPrefix, hostName(i)), []byte(Encode(named(at))), int64(i + 1), int64(i + 1)})
		v.Apply(1, Record{HostKey(testPrefix, hostName(i)), []byte(Encode(host(i+1, func(h *Host) { h.Functions[0].Addresses[0] = at }))), int64(4 - i), int64(4 - i)})
	}
	peers, refused := v.Decide()
	if len(refused) != 2 || refused[0].Place != GrantKey(testPrefix, "h2") || !strings.Contains(refused[0].Why, "granted to h1, too") || len(peers[0].Addresses) != 1 || len(peers[1].Addresses) != 0 {
		t.Errorf("%+v, refused: %v", peers, refused)
	}
}

func hostName(i int) string { return fmt.Sprint("h", i+1) }

// TestAKeyOfAnotherFleetIsNone: what is beside the prefix changes nothing.
func TestAKeyOfAnotherFleetIsNone(t *testing.T) {
	v := NewView(testPrefix)
	for _, prefix := range []string{"/vnic/other/", "/vnic/test", Aside(testPrefix)} {
		v.Apply(1, Record{GrantKey(prefix, "h1"), []byte(Encode(Grant{})), 1, 1})
		v.Apply(1, Record{HostKey(prefix, "h1"), []byte("nonsense"), 1, 1})
	}
	if _, refused := v.Decide(); len(v.Names()) != 0 || len(refused) != 0 {
		t.Errorf("%v, refused: %v", v.Names(), refused)
	}
	v.Apply(1, Record{CertKey(testPrefix, "h1"), []byte("cert"), 1, 1})
	if v.Certificate("h1") != "cert" || v.Certificate("h2") != "" {
		t.Error("the certificate is another one")
	}
	v.Apply(2, Record{Key: CertKey(testPrefix, "h1"), Modified: 2})
	if v.Certificate("h1") != "" {
		t.Error("the certificate that was deleted is still there")
	}
}

package config

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

const anyNIC = "nic: {host: 1}\nuplink: {name: vnic1, address: 10.0.0.1/24}\n"

// TestAddressesThatNoHostCanHaveAreRefused: unspecified, loopback, multicast and broadcast ones.
func TestAddressesThatNoHostCanHaveAreRefused(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"} {
		for path, yaml := range map[string]string{
			"functions[0].address":                  "functions: [{pf: 0, tenant: 1, address: '$'}]\n",
			"functions[0].vfs[0].port.addresses[0]": port("{name: p, addresses: ['$']}"),
			"peers[0].functions[0].address":         "cm: {listen: 127.0.0.1:7471, identity: k}\npeers: [{host: 2, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: vnic://lab/host/2, tenants: [1], functions: [{tenant: 1, address: '$'}]}]\n",
		} {
			if problemsOf(t, anyNIC+strings.Replace(yaml, "$", a, 1), path) == nil {
				t.Errorf("%s: %s accepted", path, a)
			}
		}
	}
	for _, a := range []string{"169.254.0.1", "fe80::1"} {
		if problemsOf(t, anyNIC+port("{name: p, addresses: ['"+a+"']}"), "functions[0].vfs[0].port.addresses[0]") == nil {
			t.Errorf("%s accepted behind a port", a)
		}
	}
	for _, p := range []string{"224.0.0.0/8", "169.254.0.0/16", "fe80::/64", "ff02::/64", "8.0.0.0/7"} {
		if problemsOf(t, anyNIC+"tenants: [{tenant: 1, subnets: ['"+p+"']}]\n", "tenants[0].subnets[0]") == nil {
			t.Errorf("%s accepted as a subnet", p)
		}
	}
}

// TestGuestIsServed: a function's guest needs an attachment of its kind with its name or number.
func TestGuestIsServed(t *testing.T) {
	attach := map[string]string{
		"unix":       "{type: unix, name: a, socket: /a}",
		"vhost-user": "{type: vhost-user, cid: 3, socket: /a}",
		"vfio-user":  "{type: vfio-user, cid: 3, socket: /a}",
		"vsock":      "{type: vsock}",
	}
	for guest, by := range map[string][]string{
		"{unix: a}": {"unix"}, "{unix: b}": nil, "{cid: 3}": {"vhost-user", "vfio-user", "vsock"}, "{cid: 4}": {"vsock"},
	} {
		for kind, a := range attach {
			wrong := problemsOf(t, anyNIC+"functions: [{pf: 0, tenant: 1, address: 192.168.0.1, guest: "+guest+"}]\nattach: ["+a+"]\n",
				map[bool]string{true: "functions[0].guest.unix", false: "functions[0].guest.cid"}[strings.Contains(guest, "unix")])
			if (wrong == nil) != slices.Contains(by, kind) {
				t.Errorf("guest %s with %s: %q", guest, kind, wrong)
			}
		}
	}
	for _, none := range []string{"{}", "{cid: 3, unix: a}"} {
		if problemsOf(t, anyNIC+"functions: [{pf: 0, tenant: 1, address: 192.168.0.1, guest: "+none+"}]\n", "functions[0].guest") == nil {
			t.Errorf("guest %s accepted", none)
		}
	}
}

// TestTheUplinkMustHoldAWholePacket: the uplink's MTU must hold a whole RDMA packet with all its headers, and need not
// be larger.
func TestTheUplinkMustHoldAWholePacket(t *testing.T) {
	for _, c := range []struct {
		uplink, function, psp string
		need                  int // with 4096 bytes of data
	}{
		{"10.0.0.1/24", "10.1.0.1", "tunnel", 4096 + 176}, // its driver may add an IPv6 address
		{"10.0.0.1/24", "fd01::1", "tunnel", 4096 + 176},
		{"fd00::1/64", "10.1.0.1", "tunnel", 4096 + 196},
		{"fd00::1/64", "fd01::1", "tunnel", 4096 + 196},
		{"10.0.0.1/24", "fd01::1", "transport", 4096 + 128},
		{"fd00::1/64", "10.1.0.1", "transport", 4096 + 148},
	} {
		for mtu, want := range map[int]bool{c.need - 1: false, c.need: true} {
			_, err := Parse(fmt.Appendf(nil, "nic: {host: 1}\nuplink: {name: a, address: '%s', mtu: %d}\nrdma: {mtu: 4096}\npsp: {mode: %s}\nfunctions: [{pf: 0, tenant: 1, address: '%s'}]\n",
				c.uplink, mtu, c.psp, c.function))
			if (err == nil) != want {
				t.Errorf("%+v, MTU %d: %v", c, mtu, err)
			}
		}
	}
}

// TestCreditsForAPacket: every limit must allow one packet of the MTU, and the limits of the NIC
// and the host one for each shard. Guarantees must leave one packet to a function without a
// guarantee.
func TestCreditsForAPacket(t *testing.T) {
	const nic = "nic: {host: 1, shards: 3}\nuplink: {name: vnic1, address: 10.0.0.1/24}\nrdma: {mtu: 4096}\n"
	c, err := Parse([]byte(nic))
	if err != nil {
		t.Fatal(err)
	}
	least := c.leastCredits()
	for _, n := range least.each() {
		refused := func(path, yaml string, value uint32) bool {
			return problemsOf(t, nic+fmt.Sprintf(yaml, n.key, value), path+"."+n.key) != nil
		}
		for _, level := range []struct {
			path, yaml string
			need       uint32
		}{
			{"credits.nic", "credits: {nic: {%[1]s: %[2]d}, host: {%[1]s: %[2]d}}\n", 3 * *n.value},
			{"credits.host", "credits: {host: {%s: %d}}\n", 3 * *n.value},
			{"credits.connection", "credits: {connection: {%s: %d}}\n", *n.value},
			{"functions[0].credits", "functions: [{pf: 0, credits: {%s: %d}}]\n", *n.value},
		} {
			if refused(level.path, level.yaml, level.need) {
				t.Errorf("%s.%s: %d refused", level.path, n.key, level.need)
			}
			if !refused(level.path, level.yaml, level.need-1) {
				t.Errorf("%s.%s: %d accepted", level.path, n.key, level.need-1)
			}
		}
		host := func(has uint32, guarantees ...uint32) error {
			c, list := *c, make([]Credits, len(guarantees))
			set := func(of *Credits, value uint32) {
				for _, x := range of.each() {
					if x.key == n.key {
						*x.value = value
					}
				}
			}
			set(&c.Credits.Host, has)
			for i, g := range guarantees {
				set(&list[i], g)
			}
			return c.CheckGuarantees(list)
		}
		need := *n.value
		for _, x := range []struct {
			has  uint32
			of   []uint32
			fits bool
		}{
			{10 * need, []uint32{5 * need, 5 * need}, true},
			{10*need - 1, []uint32{5 * need, 5 * need}, false},
			{10 * need, []uint32{9 * need, 0}, true},         // a packet is left to those that have none
			{10*need - 1, []uint32{9 * need, 0}, false},      // less is
			{10 * need, []uint32{10*need - 1, 1}, need == 1}, // of a packet, its own part is guaranteed
			{10 * need, []uint32{9 * need, need - 1}, true},
			{10 * need, []uint32{9*need + 1, need - 1}, false},
			{10 * need, nil, true},
			{math.MaxUint32, []uint32{math.MaxUint32, math.MaxUint32}, false}, // the sum has more than 32 bits
		} {
			if err := host(x.has, x.of...); (err == nil) != x.fits {
				t.Errorf("%s: %d with %d guaranteed: %v", n.key, x.has, x.of, err)
			}
		}
	}
}

// TestFunctionIsChecked: a change of one function at run time is checked by the rules of the file,
// and only the first problem is reported.
func TestFunctionIsChecked(t *testing.T) {
	c, err := Parse([]byte(anyNIC + "functions: [{pf: 0, tenant: 1, address: 192.168.0.1}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := c.Functions[0].Function
	if err := c.CheckFunction("pf0", &f, c.Taken()); err != nil {
		t.Error(err)
	}
	f.Address, f.MAC = netip.MustParseAddr("127.0.0.1"), c.Uplink.MAC
	err = c.CheckFunction("pf0", &f, c.Taken())
	if err == nil || !strings.Contains(err.Error(), "pf0.address: 127.0.0.1") || strings.Contains(err.Error(), "mac") {
		t.Error(err)
	}
}

// TestAFileMayHaveOneMebibyte: a file of one mebibyte is accepted; one byte more is refused and nothing of it is
// used.
func TestAFileMayHaveOneMebibyte(t *testing.T) {
	for size, want := range map[int]bool{maxFileSize: true, maxFileSize + 1: false, 2 * maxFileSize: false} {
		text := []byte(anyNIC + "#")
		text = append(text, slices.Repeat([]byte("x"), size-len(text))...)
		name := filepath.Join(t.TempDir(), "nic.yaml")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(name); (err == nil) != want {
			t.Errorf("%d bytes loaded: %v", size, err)
		}
		var log struct {
			NIC    NIC    `yaml:"nic"`
			Uplink Uplink `yaml:"uplink"`
		}
		if err := Decode(text, &log, nil); (err == nil) != want {
			t.Errorf("%d bytes decoded: %v", size, err)
		}
	}
}

// TestTheNearestKnownKeyIsProposed: a known key up to two typing errors away is proposed, a farther one is not.
func TestTheNearestKnownKeyIsProposed(t *testing.T) {
	long := strings.Repeat("k", 64)
	for word, want := range map[string]string{
		"uplink": "uplink", "upling": "uplink", "uplinkk": "uplink", "plink": "uplink", "upnilk": "uplink", "plin": "uplink",
		"plinnn": "", "uplunk": "uplink", "": "", "log": "log", "go": "log", "goll": "", long[:62]: long, long + "k": "", "l" + long[1:]: long,
	} {
		if got := Nearest(word, []string{"uplink", "logging", "log", long}); got != want {
			t.Errorf("%q is near %q, want %q", word, got, want)
		}
	}
	if got := Nearest("colr", []string{"colours", "color", "cold"}); got != "color" {
		t.Errorf("the first of the nearest is %q", got)
	}
}

// TestNetworksFollowFunctions: a tenant has the subnets around its functions' addresses as long as
// one of these exists, unless its subnets are configured.
func TestNetworksFollowFunctions(t *testing.T) {
	c, err := Parse([]byte(anyNIC + "tenants: [{tenant: 2, subnets: [10.0.0.0/8]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := c.Networks()
	addr := func(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }
	for _, step := range []struct {
		do      func(uint32, []netip.Addr) bool
		tenant  uint32
		addr    string
		changed bool
		have    string
	}{
		{n.Add, 1, "10.1.0.1", true, "[10.1.0.0/24]"},
		{n.Add, 1, "10.1.0.2", false, "[10.1.0.0/24]"},
		{n.Add, 1, "fd01::1", true, "[10.1.0.0/24 fd01::/64]"},
		{n.Remove, 1, "10.1.0.1", false, "[10.1.0.0/24 fd01::/64]"},
		{n.Remove, 1, "10.1.0.2", true, "[fd01::/64]"},
		{n.Add, 1, "10.1.0.2", true, "[fd01::/64 10.1.0.0/24]"},
		{n.Add, 2, "10.1.0.1", false, "[10.0.0.0/8]"},
		{n.Remove, 2, "10.1.0.1", false, "[10.0.0.0/8]"},
	} {
		if got := step.do(step.tenant, addr(step.addr)); got != step.changed || fmt.Sprint(n.Of(step.tenant).Subnets) != step.have {
			t.Errorf("%+v: changed %t, now %v", step, got, n.Of(step.tenant).Subnets)
		}
	}
	if got := n.Of(9); got.Tenant != 9 || got.Subnets != nil {
		t.Errorf("a tenant without functions: %+v", got)
	}
}

// TestEveryLimitHasItsOwnKey: a given limit sets only the quota of its name.
func TestEveryLimitHasItsOwnKey(t *testing.T) {
	for k := range abi.NumObjects {
		c, err := Parse([]byte(anyNIC + "functions: [{pf: 0, limits: {" + k.Info().Key + ": 1}}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		for other := range abi.NumObjects {
			want := *defaultLimits.Quotas.Of(other)
			if other == k {
				want = 1
			}
			if got := *c.Functions[0].Limits.Quotas.Of(other); got != want {
				t.Errorf("%s: 1 makes %s %d, want %d", k.Info().Key, other.Info().Key, got, want)
			}
		}
	}
}

// TestUnitsReadBack: a size and a rate are formatted with the largest unit that is exact, and parse
// to the same value; the largest are 4 EiB and 1 Pbit/s.
func TestUnitsReadBack(t *testing.T) {
	for size, want := range map[Size]string{
		0: "0", 1: "1", 1023: "1023", 1024: "1K", 1025: "1025", 1536: "1536", 1 << 20: "1M", 3 << 19: "1536K", 1 << 30: "1G", 1<<30 + 1024: "1048577K", 1 << 62: "4294967296G",
	} {
		var back Size
		if got := size.String(); got != want || back.UnmarshalText([]byte(got)) != nil || back != size {
			t.Errorf("%d is written %s, want %s; read as %d", uint64(size), got, want, uint64(back))
		}
	}
	for rate, want := range map[Rate]string{
		0: "0", 1: "1", 999: "999", 1000: "1K", 1001: "1.001K", 1_000_000: "1M", 1_500_000: "1.5M", 1_500_001: "1500.001K", 2_500_000_000: "2.5G", 4e12: "4T", 1e15: "1000T",
	} {
		var back Rate
		if got := rate.String(); got != want || back.UnmarshalText([]byte(got)) != nil || back != rate {
			t.Errorf("%d is written %s, want %s; read as %d", int64(rate), got, want, int64(back))
		}
	}
	for _, text := range []string{"4294967297G", "4611686018427387905", "-1", "K", "", "1KK", "1T"} {
		if new(Size).UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q accepted as a size", text)
		}
	}
	for _, text := range []string{"1000.1T", "-1", "G", "", "NaN", "1KK"} {
		if new(Rate).UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q accepted as a rate", text)
		}
	}
}

package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/internal/param"
)

const (
	exampleFile  = "../../docs/vnic.example.yaml"
	everyKeyFile = "testdata/every-key.yaml" // each key once, with its default or a working value
)

const minimal = `
nic: {host: 1}
uplink: {name: vnic1, address: 10.0.0.1/24}
`

func TestMinimalGetsDefaults(t *testing.T) {
	c, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if c.NIC.Name != "nic1" || c.Uplink.Backend != BackendNative || c.Uplink.MTU != DefaultUplinkMTU || c.RDMA.MTU != DefaultRDMAMTU ||
		c.Falcon.Profile != ProfileSoftware || c.PSP.ReplayMargin != time.Second || c.Log.Level != "info" {
		t.Errorf("defaults: %+v", c)
	}
	if got := c.Uplink.MAC.String(); got != "02:56:4e:ff:00:01" {
		t.Errorf("uplink MAC %s", got)
	}
	all := c.AllFunctions()
	if len(all) != 1 || c.Functions[0].VFCount != DefaultVFCount {
		t.Fatalf("%d functions, want one PF that may have %d VFs", len(all), DefaultVFCount)
	}
	for i, f := range all {
		if f.PF != 0 || int(f.VF) != i || f.MAC != FunctionMAC("1", 0, uint16(i)) || f.Limits != defaultLimits || f.Credits != defaultCredits {
			t.Errorf("function %d: %+v", i, f)
		}
	}
}

// TestTheDefaultRDMAMTUFitsTheUplink: it is the largest that fits the uplink's MTU with all headers,
// up to 8192.
func TestTheDefaultRDMAMTUFitsTheUplink(t *testing.T) {
	for _, tc := range []struct {
		uplink string
		want   int
	}{
		{"name: a, address: 10.0.0.1/24", 8192},
		{"name: a, address: 10.0.0.1/24, mtu: 65521", 8192},
		{"name: a, address: 10.0.0.1/24, mtu: 8368", 8192},
		{"name: a, address: 10.0.0.1/24, mtu: 8367", 4096},
		{"name: a, address: 'fd00::1/64', mtu: 8388", 8192},
		{"name: a, address: 'fd00::1/64', mtu: 8387", 4096},
		{"name: a, address: 10.0.0.1/24, mtu: 1500", 1024},
		{"name: a, address: 10.0.0.1/24, mtu: 576", 256},
		{"type: udp, listen: 127.0.0.1:1000", 1024},
		{"type: udp, listen: 127.0.0.1:1000, mtu: 9000", 8192},
	} {
		c, err := Parse([]byte("nic: {host: 1}\nuplink: {" + tc.uplink + "}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if c.RDMA.MTU != tc.want {
			t.Errorf("%s: rdma.mtu is %d, want %d", tc.uplink, c.RDMA.MTU, tc.want)
		}
	}
	for mtu := 256; mtu <= 32768; mtu *= 2 {
		if _, err := Parse(fmt.Appendf(nil, "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, mtu: 32944}\nrdma: {mtu: %d}\n", mtu)); err != nil {
			t.Error(err)
		}
	}
}

func TestVFCountCoversListedVFs(t *testing.T) {
	c, err := Parse([]byte(minimal + `
functions:
  - pf: 0
    vfs: [{vf: 2, tenant: 1, address: 192.168.100.12}, {vf: 7}]
`))
	if err != nil {
		t.Fatal(err)
	}
	pf := &c.Functions[0]
	if pf.VFCount != 7 || len(pf.VFs) != 2 || !*pf.VFs[0].Enabled || *pf.VFs[1].Enabled || *pf.Enabled {
		t.Errorf("%+v", pf)
	}
}

// TestTheExampleIsValidAndShort: the documented example is a good configuration, and fits on a screen and a half.
func TestTheExampleIsValidAndShort(t *testing.T) {
	c, err := Load(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if c.Functions[0].VFs[0].Guest.CID != 3 || c.Peers[0].Underlay.AddrPort != netip.MustParseAddrPort("10.0.0.2:1000") {
		t.Errorf("example: %+v", c)
	}
	b, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 75 {
		t.Errorf("the example has %d lines: leave to docs/configuration.md what most NICs do not set", n)
	}
}

// TestEveryKeyIsRead: each key of the types and tables is read from a file that has them all.
func TestEveryKeyIsRead(t *testing.T) {
	if _, err := Load(everyKeyFile); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(everyKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	collectKeys(doc.Content[0], "", found)
	wantKeys(t, reflect.TypeFor[Config](), "", found)
	for _, key := range keysOf(reflect.TypeFor[VF]()) {
		if !found["functions[].vfs[]."+key] {
			t.Errorf("%s has no %s of a function", everyKeyFile, key)
		}
	}
	swift, _ := cc.Lookup(cc.Default)
	profile := falcon.Software()
	for group, keys := range map[string][]param.Key{"falcon.cc.": swift.Parameters(cc.Software).Keys(), "falcon.": profile.Keys()} {
		for _, k := range keys {
			if !found[group+k.Name] {
				t.Errorf("%s has no %s%s", everyKeyFile, group, k.Name)
			}
		}
	}
}

func collectKeys(n *yaml.Node, path string, found map[string]bool) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			p := join(path, n.Content[i].Value)
			found[p] = true
			collectKeys(n.Content[i+1], p, found)
		}
	case yaml.SequenceNode:
		for _, e := range n.Content {
			collectKeys(e, path+"[]", found)
		}
	}
}

func wantKeys(t *testing.T, typ reflect.Type, path string, found map[string]bool) {
	t.Helper()
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case isScalar(typ):
	case typ.Kind() == reflect.Slice:
		wantKeys(t, typ.Elem(), path+"[]", found)
	case typ.Kind() == reflect.Struct:
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Anonymous {
				// A PF's own limits and credits read like a VF's, which are there.
				continue
			}
			if f.Tag.Get("yaml") == "" {
				continue // Values, whose keys are in a table
			}
			p := join(path, f.Tag.Get("yaml"))
			if !found[p] {
				t.Errorf("%s has no %s", everyKeyFile, p)
			}
			wantKeys(t, f.Type, p, found)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "nowhere.yaml"))
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "nowhere.yaml") {
		t.Errorf("error %v", err)
	}
	path := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(path, []byte("nic: {host: 1000}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Load(path)
	var ps Problems
	if !errors.As(err, &ps) || len(ps) == 0 || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

func TestSizesAreReadWithTheirUnits(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "4096": 4096, "64K": 65536, "512M": 512 << 20, "2G": 2 << 30, "0x1000": 4096} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s = %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "1T", "99999999999G"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q accepted as %d", text, s)
		}
	}
	for _, s := range []Size{0, 1, 4096, 3 << 20, 5 << 30} {
		var back Size
		if err := back.UnmarshalText([]byte(s.String())); err != nil || back != s {
			t.Errorf("%d → %q → %d, %v", s, s, back, err)
		}
	}
}

// Shares and rates are formatted in the form in which they are parsed.
func TestSharesAndRates(t *testing.T) {
	for text, want := range map[string]float64{"1%": 0.01, "0.25": 0.25, "100%": 1, "0": 0, "0.1%": 0.001} {
		var s, again Share
		if err := s.UnmarshalText([]byte(text)); err != nil || math.Abs(float64(s)-want) > 1e-12 {
			t.Errorf("%s: %v, %v", text, float64(s), err)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%s: written as %s, %v", text, s, err)
		}
	}
	for text, want := range map[string]Rate{"1G": 1e9, "2.5G": 25e8, "100M": 1e8, "64K": 64000, "1K": 1000, "1T": 1e12, "1234": 1234, "999": 999} {
		var r, again Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%s: %d, %v", text, int64(r), err)
		}
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Errorf("%s: written as %s, %v", text, r, err)
		}
	}
}

// TestRatesReadWell: a rate is formatted with the largest unit that is exact.
func TestRatesReadWell(t *testing.T) {
	for r, want := range map[Rate]string{
		0: "0", 1: "1", 999: "999", 1000: "1K", 1001: "1.001K", 1_000_000: "1M", 1_000_001: "1000.001K", 2_500_000_000: "2.5G", 1e12: "1T",
	} {
		if got := r.String(); got != want {
			t.Errorf("%d is written as %s, want %s", int64(r), got, want)
		}
	}
}

// TestFunctionMACsDiffer: functions of one NIC have different addresses, whatever PF and VF.
func TestFunctionMACsDiffer(t *testing.T) {
	if got, want := FunctionMAC("3", 5, 0x6ab), (MAC{0x02, 0x56, 0x4e, 3, 0x56, 0xab}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	seen := map[MAC]string{}
	for pf := range uint8(16) {
		for _, vf := range []uint16{0, 1, 15, 16, 255, 256, 4095} {
			mac, name := FunctionMAC("1", pf, vf), fmt.Sprintf("pf%d.vf%d", pf, vf)
			if other := seen[mac]; other != "" {
				t.Errorf("%s and %s both have %v", name, other, mac)
			}
			seen[mac] = name
		}
	}
}

// TestParametersWithoutAFaultDoNothing: parameters without a fault have no effect.
func TestParametersWithoutAFaultDoNothing(t *testing.T) {
	if (Impairment{ReorderDelay: 1, Queue: 2, Seed: 3}).On() {
		t.Error("a seed, a queue and a delay for packets that are not reordered do something")
	}
	for _, i := range []Impairment{{Loss: 0.1}, {Rate: 1000}, {Delay: 1}, {Down: true}} {
		if !i.On() {
			t.Errorf("%+v does nothing", i)
		}
	}
}

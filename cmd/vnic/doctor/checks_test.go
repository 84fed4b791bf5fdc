package doctor

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	first = `
nic: {host: 1}
control: /run/1.sock
uplink: {name: up1, bridge: br0, mtu: 4500, address: 10.0.0.1/24}
cm: {listen: 127.0.0.1:7471, identity: /keys}
peers: [{host: 2, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: "vnic://lab/host/2", tenants: [100]}]
functions: [{pf: 0, vfs: [{vf: 1, tenant: 100, address: 192.168.100.1, guest: {cid: 5}}]}]
attach: [{type: vhost-user, socket: /run/g1.sock, cid: 5}]
`
	second = `
nic: {host: 2}
uplink: {name: up2, mtu: 4500, address: 10.0.0.2/24}
functions: [{pf: 0, vfs: [{vf: 1, tenant: 100, address: 192.168.100.2}]}]
`
)

// good returns a machine with two configurations and a running NIC, and nothing wrong with them.
func good(t *testing.T) *seen {
	t.Helper()
	now := time.Now()
	return &seen{
		machine: machine{files: 1 << 20, locked: 1 << 30}, version: "1.0", now: now,
		files: []file{
			{path: "nic1.yaml", cfg: parse(t, first), ends: now.AddDate(1, 0, 0), bridges: map[string][]tap.Member{"br0": {{Name: "up1", MTU: 4500, Carrier: true}, {Name: "eth0", MTU: 9000, Carrier: true}}}},
			{path: "nic2.yaml", cfg: parse(t, second)},
		},
		nics: []nic{{
			socket: "/run/1.sock", counters: control.Counters{"cmlink.certificate_ends": uint64(now.AddDate(1, 0, 0).Unix())},
			is: control.NIC{
				Version: "1.0", Starts: 2, Upgrades: 1, Uplinks: []control.Uplink{{Name: "up1", MTU: 4500}},
				Peers: []control.Peer{{Host: 2, Identity: "vnic://lab/host/2", Up: true, PathMTU: 4500}},
			},
			functions: []control.Function{{ID: "h1.pf0.vf1", State: "READY", Guest: "cid 5", Attached: "vhost-user"}, {ID: "h1.pf0.vf2", State: "READY", Port: &control.Port{Name: "vp2", Up: true}}},
		}},
	}
}

// ills are what can be wrong, by check: each is one change of what is good, and what is said of it.
var ills = map[string][]struct {
	make func(s *seen)
	want string
}{
	"tun":          {{func(s *seen) { s.machine.tun = &fs.PathError{Op: "open", Path: "/dev/net/tun", Err: fs.ErrNotExist} }, "/dev/net/tun: file does not exist"}},
	"uso":          {{func(s *seen) { s.machine.noUSO = "Linux 6.1.0-42-amd64 refuses UDP segmentation on a TAP" }, "Linux 6.1.0-42-amd64"}},
	"kvm":          {{func(s *seen) { s.machine.kvm = fs.ErrPermission }, "permission denied: QEMU emulates"}},
	"br_netfilter": {{func(s *seen) { s.machine.bridgeFilter = true }, "iptables sees"}},
	"neighbours": {{func(s *seen) {
		s.machine.neighbours = nearlyFull("ARP", "entries  allocs\n000003fd 00003cb1\n000003fd 00003f30\n", "1024\n")
	}, "(ARP) has 1021 entries of at most 1024"}},
	"clock": {
		{func(s *seen) { s.machine.clockWrong = true }, "nothing keeps"},
		{func(s *seen) { s.nics[0].is.Peers[0].ClockAheadMS = 120_000 }, "the clock of peer vnic://lab/host/2 is 2m0s ahead of"},
		{func(s *seen) { s.nics[0].is.Peers[0].ClockAheadMS = -31_400 }, "the clock of peer vnic://lab/host/2 is 31s behind"},
	},
	"memlock":       {{func(s *seen) { s.machine.locked = 8 << 20 }, "may lock 8192 KiB"}},
	"descriptors":   {{func(s *seen) { s.machine.files, s.files = 300, s.files[:1] }, "may open 300 files, and a NIC with 2 functions may need 320"}},
	"configuration": {{func(s *seen) { s.files[1].cfg, s.files[1].err = nil, errors.New("line 3: rmda: unknown key") }, "line 3: rmda: unknown key"}},
	"machine":       {{func(s *seen) { s.files[0].lacks = errors.New(`uplink.bridge: bridge "br0" does not exist`) }, `bridge "br0" does not exist`}},
	"equal": {
		{func(s *seen) { s.files[1].cfg.CM.Name = "1" }, "cm.name 1 is already used by nic1.yaml"},
		{func(s *seen) { s.files[1].cfg.Uplink.Address = s.files[0].cfg.Uplink.Address }, "uplink.address 10.0.0.1 is already used by"},
		{func(s *seen) {
			for _, f := range s.files {
				f.cfg.Uplink.Type, f.cfg.Uplink.Listen = config.UplinkUDP, netip.MustParseAddrPort("192.0.2.1:1000")
			}
		}, "uplink.listen 192.0.2.1:1000 is already used by"},
		{func(s *seen) { s.files[1].cfg.Control = "/run/1.sock" }, "control /run/1.sock"},
		{func(s *seen) {
			s.files[1].cfg.Metrics.Listen = s.files[0].cfg.CM.Listen
			s.files[0].cfg.Metrics.Listen = s.files[0].cfg.CM.Listen
		}, "metrics.listen 127.0.0.1:7471"},
		{func(s *seen) { s.files[1].cfg.Functions[0].VFs[0].Address = s.files[0].cfg.Functions[0].VFs[0].Address }, "address 192.168.100.1 in tenant 100"},
		{func(s *seen) { s.files[1].cfg.Attach = s.files[0].cfg.Attach }, "socket /run/g1.sock"},
	},
	"psp.mode": {
		{func(s *seen) { s.files[1].cfg.PSP.Mode = config.PSPTransport }, "psp.mode is transport, in nic1.yaml it is tunnel"},
		{func(s *seen) { s.nics[0].is.Peers[0].Note = controller.OtherMode }, "peer vnic://lab/host/2 seals with another psp.mode"},
	},
	"certificate": {
		{func(s *seen) { s.files[0].ends = s.now.AddDate(0, 0, 10) }, "or the authority's, expires on"},
		{func(s *seen) { s.nics[0].counters["cmlink.certificate_ends"] = uint64(s.now.AddDate(0, 0, 10).Unix()) }, "that it uses"},
	},
	"mtu": {
		{func(s *seen) { s.files[0].bridges["br0"][1].MTU = 1500 }, "eth0 in bridge br0 has an MTU of 1500, uplink.mtu is 4500"},
		{func(s *seen) {
			s.nics[0].is.Peers[0].PathMTU, s.nics[0].is.Peers[0].Note = 1500, "the network carries packets of 1500 bytes to it, uplink.mtu is 4500"
		}, "packets of 1500 bytes to peer vnic://lab/host/2"},
	},
	"carrier": {
		{func(s *seen) { s.files[0].bridges["br0"][1].Carrier = false }, "eth0 in bridge br0 has no carrier"},
		{func(s *seen) { s.files[0].bridges["br0"] = s.files[0].bridges["br0"][:1] }, "nothing but this NIC is in bridge br0"},
	},
	"answer": {{func(s *seen) { s.nics[0].err = errors.New("nobody answers") }, "nobody answers"}},
	"version": {
		{func(s *seen) { s.nics[0].is.Version = "0.9" }, "the NIC is vnic 0.9, this program 1.0"},
		{func(s *seen) { p := &s.nics[0].is.Peers[0]; p.Up, p.Note = false, (&cm.VersionError{Got: 9}).Error() }, "speaks version 9"},
	},
	"warning": {
		{func(s *seen) { s.nics[0].is.Warnings = []string{"metrics: in use"} }, "runs without metrics: in use"},
		{func(s *seen) { s.nics[0].is.UpgradeRefused = "a bad key" }, "upgrade was refused: a bad key"},
	},
	"worker": {
		{func(s *seen) { s.nics[0].is.Starts = 5 }, "3 workers ended by themselves, 0 were stuck"},
		{func(s *seen) { s.nics[0].is.Stuck = 1 }, "1 workers ended by themselves, 1 were stuck"},
	},
	"peer": {
		{func(s *seen) { s.nics[0].is.Peers[0].Up = false }, "peer vnic://lab/host/2 is not reached"},
		{func(s *seen) { s.nics[0].is.Peers[0].Note = "announces no function" }, "peer vnic://lab/host/2 announces no function"},
	},
	"impaired": {
		{func(s *seen) { s.nics[0].is.Uplinks[0].TX.Impairment.Loss = 0.01 }, "the uplink up1 loses"},
		{func(s *seen) { s.nics[0].is.Uplinks[0].RX.Impairment.DelayNS = 1 }, "the uplink up1 loses"},
	},
	"function": {{func(s *seen) { f := &s.nics[0].functions[0]; f.State, f.Fault = "ERROR", "a bad doorbell" }, "h1.pf0.vf1: it has stopped: a bad doorbell"}},
	"guest": {
		{func(s *seen) { s.nics[0].functions[0].Attached = "" }, "h1.pf0.vf1: no driver of cid 5 is attached"},
		{func(s *seen) { s.nics[0].functions[1].Port.Up = false }, "h1.pf0.vf2: no guest uses its port vp2"},
		{func(s *seen) { s.nics[0].functions[1].Port.Fault = "a bad ring" }, "its port vp2 has stopped: a bad ring"},
	},
}

// TestEachCheckFindsWhatIsWrongAndNothingElse: of a world that is good but for one thing, this thing
// is found by its check, and no other check finds something.
func TestEachCheckFindsWhatIsWrongAndNothingElse(t *testing.T) {
	if found := good(t).findings(); len(found) > 0 {
		t.Fatalf("found in a good world: %+v", found)
	}
	for _, c := range checks {
		if len(ills[c.name]) == 0 && c.name != "socket" { // TestQEMUsUserMayNotOpenAClosedSocket
			t.Errorf("%s: no test makes it true", c.name)
		}
		for _, ill := range ills[c.name] {
			s := good(t)
			ill.make(s)
			found := s.findings()
			if len(found) != 1 || found[0].Check != c.name || !strings.Contains(found[0].Wrong, ill.want) || found[0].Remedy == "" {
				t.Errorf("%s: %s: found %+v", c.name, ill.want, found)
			}
		}
	}
}

// TestDocsListEachCheck: docs/troubleshooting.md has a line for each check, and for no other.
func TestDocsListEachCheck(t *testing.T) {
	b, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "## The doctor\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, c := range checks {
		if row := "| `" + c.name + "` | " + c.looks + " |"; !strings.Contains(section, row) {
			t.Errorf("no line %s", row)
		}
	}
	if n := strings.Count(section, "\n| `"); n != len(checks) {
		t.Errorf("%d lines for %d checks", n, len(checks))
	}
}

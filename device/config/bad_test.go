package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestABadConfigurationIsRefusedWithARemedy checks one fault at a time and expects a message with the path, the value and the
// remedy.
func TestABadConfigurationIsRefusedWithARemedy(t *testing.T) {
	base := `
nic: {host: 1}
uplink: {name: vnic1, address: 10.0.0.1/24}
`
	withPeer := base + `
cm: {listen: 127.0.0.1:7471, identity: keys/host1}
`
	const peer2 = `{host: 2, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: vnic://lab/host/2, tenants: [1]}`
	for _, tc := range []struct {
		name, yaml string
		want       []string
	}{
		{"empty", "", []string{"nic.host: missing or 0", "uplink.name: missing", "uplink.address: missing"}},
		{"not yaml", "nic: [", []string{"not YAML"}},
		{"a tab", "nic: {host: 1}\nuplink:\n\tname: vnic1\n", []string{"line 3: not YAML: it is indented by a tab; indent by spaces"}},
		{"a name for an address", base + "cm: {listen: 'localhost:7471'}\n", []string{`cm.listen: "localhost:7471" does not begin with an IP address; write the address itself, as 127.0.0.1:7471`}},
		{"a port that is none", base + "metrics: {listen: '127.0.0.1:99999'}\n", []string{`metrics.listen: "127.0.0.1:99999" has the port "99999"; use a port from 1 to 65535`}},
		{"a port alone", base + "metrics: {listen: 9470}\n", []string{`metrics.listen: "9470" has no port; write address and port`}},
		{"IPv6 and a port", base + "metrics: {listen: 'fd00::1:9470:7'}\n", []string{"write an IPv6 address in brackets, as [fd00::1]:7471"}},
		{"a MAC that a default has", base + "functions: [{pf: 0, mac: '02:56:4e:01:00:01', vfs: [{vf: 1}]}]\n", []string{"functions[0].vfs[0].mac: the default, 02:56:4e:01:00:01, is already used by functions[0]; give each function a MAC"}},
		{"a name that a default has", base + "attach: [{type: unix, socket: /a/x.sock}, {type: unix, socket: /b/x.sock}]\n", []string{`attach[1].name: the default, "x", is already used by attach[0]; give each unix attachment its own name`}},
		{"thresholds of a short queue", base + "falcon: {rue: {size: 100}}\n", []string{"falcon.rue.threshold1: the default, 65536, is not between 0, the threshold before it, and size, 100; write three rising numbers"}},
		{"falling levels", base + "falcon: {rx_packets: {levels: [2, 1]}}\n", []string{"falcon.rx_packets.levels: 2 thresholds are listed; list 31, or none"}},
		{"no average", base + "falcon: {rx_buffers: {alpha: 0}}\n", []string{"falcon.rx_buffers.alpha: 0 is out of range; use a number above 0, at most 1"}},
		{"two documents", minimal + "---\nnic: {host: 2}\n", []string{"more than one YAML document"}},
		{"metrics by a name, nowhere", base + "metrics: {hosts: [a.example]}\n", []string{"metrics.listen: missing, but metrics.hosts are listed; give the address"}},
		{"metrics by a URL", base + "metrics: {listen: 127.0.0.1:9470, hosts: ['http://a.example']}\n", []string{`metrics.hosts[0]: "http://a.example" is not a host's name; write a name without scheme and port`}},
		{"a page for everybody, by mistake", base + "web: {listen: '0.0.0.0:9480'}\n", []string{"web.listen: 0.0.0.0:9480 is not a loopback address, and the page has no authentication; use 127.0.0.1:9480 and reach it by ssh -L, or write web.public: true"}},
		{"a page by a name, nowhere", base + "web: {hosts: [a.example]}\n", []string{"web.listen: missing, but web.hosts are listed; give the address to listen on, as 127.0.0.1:9480"}},
		{"metrics by a name with a port", base + "metrics: {listen: 127.0.0.1:9470, hosts: ['a.example:9470']}\n", []string{`metrics.hosts[0]: "a.example:9470" is not`}},
		{"UDP without a place", "nic: {host: 1}\nuplink: {type: udp}\n", []string{"uplink.listen: missing; give an address of the host and a port, as 10.0.0.1:1000"}},
		{"UDP at a group", "nic: {host: 1}\nuplink: {type: udp, listen: '224.0.0.1:1000'}\n", []string{"uplink.listen: 224.0.0.1 cannot be a host's address"}},
		{"UDP with a TAP's keys", "nic: {host: 1}\nuplink: {type: udp, listen: '10.0.0.1:1000', name: up, bridge: br0}\n", []string{"uplink.name: has no meaning for type udp", "uplink.bridge: has no meaning for type udp: the host's own network carries the packets; leave it out"}},
		{"a TAP with keys of UDP", "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24, listen: '10.0.0.1:1000', keepalive: 25s}\n", []string{"uplink.listen: has no meaning for type tap; leave it out, or write type udp", "uplink.keepalive: has no meaning for type tap"}},
		{"a peer's port", withPeer + "peers: [{host: 2, underlay: '10.0.0.2:0', cm: 127.0.0.1:7472, identity: vnic://lab/host/2, tenants: [1]}]\n", []string{`peers[0].underlay: "10.0.0.2:0" has the port 0; use a port from 1 to 65535`}},
		{"a peer that is anywhere, on a TAP", withPeer + "peers: [{host: 2, underlay: 0.0.0.0, cm: 127.0.0.1:7472, identity: vnic://lab/host/2, tenants: [1]}]\n", []string{"peers[0].underlay: 0.0.0.0 cannot be the peer's address"}},
		{"a small recorder", "nic: {host: 1, recorder: {size: 1M, payload: some}}\nuplink: {name: up, address: 10.0.0.1/24}\n", []string{"nic.recorder.size: 1M is out of range; use 8M to 4G", `nic.recorder.payload: "some" is not known; write one of digest, whole, none`}},
		{"psp mode", base + "psp: {mode: ipsec}\n", []string{`psp.mode: "ipsec" is not known; write one of tunnel, transport`}},
		{"port without name", base + port("{mode: direct}"), []string{"functions[0].vfs[0].port.name: missing; name the TAP"}},
		{"port mode", base + port("{name: p, mode: macvtap}"), []string{`port.mode: "macvtap" is not known; write one of direct, bridged`}},
		{"port named as the uplink", base + port("{name: vnic1}"), []string{`port.name: "vnic1" is already used by uplink`}},
		{"port without tenant", base + "functions: [{pf: 0, port: {name: p}}]\n", []string{"functions[0].port: the function is in no tenant"}},
		{"direct port on a bridge", base + port("{name: p, bridge: b}"), []string{"port.bridge: a direct port carries the function's MAC", "use mode bridged"}},
		{"bridged port in a namespace", base + port("{name: p, mode: bridged, netns: x}"), []string{"port.netns: a bridged port stays"}},
		{"direct port's MAC", base + port("{name: p, mac: '02:00:00:00:00:01'}"), []string{"port.mac: 02:00:00:00:00:01 is not the function's 02:56:4e:01:00:01"}},
		{"bridged port's MAC", base + port("{name: p, mode: bridged, mac: '02:56:4e:01:00:01'}"), []string{"port.mac: 02:56:4e:01:00:01 is the function's own; use another"}},
		{"port MTU", base + port("{name: p, mtu: 9000}"), []string{"port.mtu: 9000 does not fit uplink.mtu 9000: with 68 bytes around a sealed packet it needs 9068; write 8932 or less"}},
		{"small port MTU", base + port("{name: p, mtu: 100}"), []string{"port.mtu: 100 is out of range; use 576 to 8932 bytes"}},
		{"small port MTU for IPv6", base + port("{name: p, mtu: 1279, addresses: ['fd01::1']}"), []string{"port.mtu: 1279 is out of range; use 1280 to 8932 bytes"}},
		{"port address twice", base + port("{name: p, addresses: [10.1.0.1]}"), []string{"port.addresses[0]: 10.1.0.1 in tenant 1 is already used by functions[0].vfs[0]"}},
		{"port address", base + port("{name: p, addresses: [224.0.0.1]}"), []string{"port.addresses[0]: 224.0.0.1 cannot be a function's address"}},
		{"tenant twice", base + "tenants: [{tenant: 1}, {tenant: 1}]\n", []string{"tenants[1].tenant: 1 is already described in tenants[0]"}},
		{"subnet bits", base + "tenants: [{tenant: 1, subnets: [10.0.0.1/24]}]\n", []string{"tenants[0].subnets[0]: 10.0.0.1/24 has bits set after its prefix length; write 10.0.0.0/24"}},
		{"subnets overlap", base + "tenants: [{tenant: 1, subnets: [10.0.0.0/16, 10.0.1.0/24]}]\n", []string{"tenants[0].subnets[1]: 10.0.1.0/24 overlaps subnets[0]"}},
		{"subnet without function", base + port("{name: p}") + "tenants: [{tenant: 1, subnets: [10.9.0.0/16]}]\n", []string{"tenants[0].subnets: none contains 10.1.0.1, an address of functions[0].vfs[0]; add its network, as 10.1.0.0/24"}},
		{"router outside", base + "tenants: [{tenant: 1, subnets: [10.9.0.0/16], routers: [10.8.0.1]}]\n", []string{"tenants[0].routers[0]: 10.8.0.1 is in none of the tenant's subnets"}},
		{"router is a function", base + port("{name: p}") + "tenants: [{tenant: 1, routers: [10.1.0.1]}]\n", []string{"functions[0].vfs[0].address: 10.1.0.1 in tenant 1 is already used by tenants[0].routers[0]"}},
		{"route", base + "tenants: [{tenant: 1, routes: [{prefix: 10.9.0.0/16, via: 'fd00::1'}]}]\n", []string{"tenants[0].routes[0].via: missing, or not an address of the prefix's IP version"}},
		{"scalar document", "hello", []string{`"hello" where a group of keys is expected`}},
		{"unknown key", base + "upling: {}\n", []string{`line 4: upling: unknown key; did you mean "uplink"?`}},
		{"unknown nested key", base + "functions:\n  - pf: 0\n    vfs:\n      - {vf: 1, adress: x}\n", []string{`line 7: functions[0].vfs[0].adress: unknown key; did you mean "address"?`}},
		{"unknown far key", base + "log: {colour: red}\n", []string{"log.colour: unknown key; known here: format, level"}},
		{"key twice", base + "log: {level: info, level: warn}\n", []string{"level"}},
		{"alias", base + "log: &l {level: info}\nrdma: *l\n", []string{"rdma: aliases are not supported"}},
		{"merge key", base + "rdma: {<<: {mtu: 256}}\n", []string{"rdma.<<: unknown key"}},
		{"host range", "nic: {host: 256}\nuplink: {name: a, address: 10.0.0.1/24}\n", []string{`line 1: nic.host: "256" is out of range; use 1 to 255`}},
		{
			"address of a VF", base + "functions:\n  - pf: 0\n    vfs:\n      - {vf: 1, tenant: 1, address: x}\n",
			[]string{`functions[0].vfs[0].address: "x" is not an IPv4 or IPv6 address; write it as 192.168.100.11`},
		},
		{"mapped address", base + "functions: [{pf: 0, tenant: 1, address: '::ffff:10.0.0.1'}]\n", []string{`functions[0].address: "::ffff:10.0.0.1" is not an IPv4 or IPv6 address`}},
		{"zone", base + "functions: [{pf: 0, tenant: 1, address: 'fe80::1%eth0'}]\n", []string{`functions[0].address: "fe80::1%eth0" is not an IPv4 or IPv6 address`}},
		{"IPv6 multicast", base + "functions: [{pf: 0, tenant: 1, address: 'ff02::1'}]\n", []string{"functions[0].address: ff02::1 cannot be a function's address"}},
		{"IPv6 mtu", "nic: {host: 1}\nuplink: {name: a, address: 'fd00::1/64', mtu: 1000}\nrdma: {mtu: 256}\n", []string{"uplink.mtu: 1000 is too small for the IPv6 address fd00::1; use 1280 bytes or more"}},
		{"IPv6 headers", "nic: {host: 1}\nuplink: {name: a, address: 'fd00::1/64', mtu: 4280}\nrdma: {mtu: 4096}\nfunctions: [{pf: 0, tenant: 1, address: 'fd01::1'}]\n", []string{"with 196 bytes of headers it needs 4292"}},
		{"IP versions", withPeer + "peers: [{host: 2, underlay: 'fd00::2', cm: 127.0.0.1:7472, identity: a, tenants: [1]}]\n", []string{"peers[0].underlay: fd00::2 and uplink.address 10.0.0.1/24 are of different IP versions"}},
		{"loopback address", base + "functions: [{pf: 0, tenant: 1, address: 127.0.0.1}]\n", []string{"functions[0].address: 127.0.0.1 cannot be a function's address"}},
		{"log level", base + "log: {level: loud}\n", []string{`log.level: "loud" is not known; write one of debug, info, warn, error`}},
		{"superframes", "nic: {host: 1}\nuplink: {superframes: yes, name: a, address: 10.0.0.1/24}\n", []string{`uplink.superframes: "yes"`}},
		{"queues", "nic: {host: 1}\nuplink: {queues: 17, name: a, address: 10.0.0.1/24}\n", []string{"uplink.queues: 17 is out of range; use 1 to 16"}},
		{"queues of water", "nic: {host: 1}\nuplink: {backend: water, queues: 2, name: a, address: 10.0.0.1/24}\n", []string{"uplink.queues: 2 queues with backend water, which has one"}},
		{"backend", "nic: {host: 1}\nuplink: {backend: dpdk, name: a, address: 10.0.0.1/24}\n", []string{`uplink.backend: "dpdk"`}},
		{"long name", "nic: {host: 1}\nuplink: {name: abcdefghijklmnop, address: 10.0.0.1/24}\n", []string{`uplink.name: "abcdefghijklmnop" has 16 characters`}},
		{"slash name", "nic: {host: 1}\nuplink: {name: a/b, address: 10.0.0.1/24}\n", []string{`"a/b" is not a network device name`}},
		{"prefix", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1}\n", []string{`uplink.address: "10.0.0.1" is not an IPv4 or IPv6 address with a prefix length; write it as 10.0.0.1/24`}},
		{"neighbour far", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, neighbours: [{address: 10.0.1.1, mac: 02:00:00:00:00:01}]}\n", []string{"uplink.neighbours[0].address: 10.0.1.1 is not the address of another host in 10.0.0.0/24"}},
		{"neighbour without MAC", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, neighbours: [{address: 10.0.0.2}]}\n", []string{"uplink.neighbours[0].mac: 00:00:00:00:00:00 is not a unicast MAC address"}},
		{"neighbour twice", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, neighbours: [{address: 10.0.0.2, mac: 02:00:00:00:00:01}, {address: 10.0.0.2, mac: 02:00:00:00:00:02}]}\n", []string{"uplink.neighbours[1].address: 10.0.0.2 is listed twice"}},
		{"gateway", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, gateway: 10.0.1.1}\n", []string{"uplink.gateway: 10.0.1.1 is not in 10.0.0.0/24"}},
		{"multicast MAC", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, mac: '01:00:5e:00:00:01'}\n", []string{"uplink.mac", "multicast"}},
		{"share", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, impair: {tx: {loss: 120%}}}\n", []string{`uplink.impair.tx.loss: "120%" is not a share of packets; write 0% to 100%, or 0 to 1`}},
		{"delay", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, impair: {rx: {delay: 1m}}}\n", []string{"uplink.impair.rx.delay: 1m0s is out of range; use 0s to 10s"}},
		{"line rate", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, impair: {rx: {rate: 1}}}\n", []string{"uplink.impair.rx.rate: 1 bits per second is too little"}},
		{"line queue", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, impair: {rx: {queue: -1}}}\n", []string{"uplink.impair.rx.queue: -1 packets is out of range; use 1 to 65536"}},
		{"mtu", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, mtu: 1500}\nrdma: {mtu: 4096}\n", []string{"rdma.mtu: 4096 does not fit uplink.mtu 1500", "write 1024 or leave it out, or raise uplink.mtu"}},
		{"mtu range", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, mtu: 100}\n", []string{"uplink.mtu: 100 is out of range"}},
		{"rdma mtu", base + "rdma: {mtu: 1000}\n", []string{"rdma.mtu: 1000 is not an RDMA MTU; write a power of two from 256 to 32768, or leave it out"}},
		{"small rdma mtu", base + "rdma: {mtu: 128}\n", []string{"rdma.mtu: 128 is not an RDMA MTU"}},
		{"large rdma mtu", base + "rdma: {mtu: 65536}\n", []string{"rdma.mtu: 65536 is not an RDMA MTU"}},
		{"rdma mtu and headers", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/24, mtu: 32943}\nrdma: {mtu: 32768}\n", []string{"rdma.mtu: 32768 does not fit uplink.mtu 32943: with 176 bytes of headers it needs 32944; write 16384 or"}},
		{"profile", base + "falcon: {profile: fast}\n", []string{`falcon.profile: "fast"`}},
		{"window", base + "falcon: {data_tx_window: 100}\n", []string{"falcon.data_tx_window: 100 is out of range; use a power of two, 1 to 1024"}},
		{"falcon time", base + "falcon: {ack_timeout: 2s}\n", []string{"falcon.ack_timeout: 2s is out of range"}},
		{
			"congestion", base + "falcon: {cc: {min_fcwnd: 5, max_fcwnd: 4, fabric_mdf: 2, target_rx_level: 32, min_rto: 3s, delay_select: x}}\n",
			[]string{"falcon.cc.min_fcwnd: 5 is above max_fcwnd 4", "falcon.cc.fabric_mdf: 2 is out of range", "falcon.cc.target_rx_level", "falcon.cc.min_rto: 3s is out of range", "falcon.cc.delay_select"},
		},
		{"algorithm", base + "falcon: {cc: {algorithm: swft}}\n", []string{`falcon.cc.algorithm: "swft" is not known; write one of fixed, swift`}},
		{"key of another algorithm", base + "falcon: {cc: {fcwnd: 8}}\n", []string{`falcon.cc.fcwnd: unknown key`}},
		{"bounds of another algorithm", base + "falcon: {cc: {fcwnd: 9000, algorithm: fixed}}\n", []string{`falcon.cc.fcwnd: 9000 is out of range`}},
		{"window size", base + "functions: [{pf: 0, dma_window: {address: 0, size: 1000}}]\n", []string{"functions[0].dma_window.size: 1000 is not a number of pages; use a multiple of 4K"}},
		{"window address", base + "functions: [{pf: 0, dma_window: {address: 100, size: 4K}}]\n", []string{"functions[0].dma_window.address: 100 is not the address of a page"}},
		{"psp version", base + "psp: {version: 4}\n", []string{"psp.version: 4 is not a PSP version"}},
		{"margin", base + "psp: {replay_margin: 5}\n", []string{`psp.replay_margin: "5" is not a duration; write it with its unit`}},
		{"cpu", strings.Replace(base, "host: 1", "host: 1, cpu: 1024", 1), []string{"nic.cpu[0]: 1024 is out of range; use 0 to 1023, or leave it out"}},
		{"spin", strings.Replace(base, "host: 1", "host: 1, spin: 1s", 1), []string{"nic.spin: 1s is out of range; use 0s to 10ms"}},
		{"watchdog", strings.Replace(base, "host: 1", "host: 1, watchdog: 100ms", 1), []string{"nic.watchdog: 100ms is too short; use 1s or more, or 0s for none"}},
		{"rotation", base + "psp: {rotate_every: 10ms}\n", []string{"psp.rotate_every: 10ms is out of range; use 1s to 720h0m0s, or 0s"}},
		{"margin range", base + "psp: {replay_margin: 1h}\n", []string{"psp.replay_margin: 1h0m0s is out of range"}},
		{"peer without cm", base + "peers: [" + peer2 + "]\n", []string{"cm.listen: missing", "cm.identity: missing"}},
		{"peer is us", withPeer + "peers: [{host: 1, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: a, tenants: [1]}]\n", []string{"peers[0]: NIC 1 is this NIC itself (cm.name)"}},
		{"peer of another name than its identity", withPeer + "peers: [{name: b, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: vnic://lab/host/c, tenants: [1]}]\n", []string{`peers[0].identity: "vnic://lab/host/c" is the identity of NIC c, but the peer is b`}},
		{"peer whose name is none", withPeer + "peers: [{name: ../b, underlay: 10.0.0.2, cm: 127.0.0.1:7472, tenants: [1]}]\n", []string{`peers[0].name: "../b" is not a name: use a-z, 0-9, '-' and '.', like rack1.lab; write the peer's cm.name`}},
		{"peer whose name is too long", withPeer + "peers: [{name: " + strings.Repeat("b", 64) + ", underlay: 10.0.0.2, cm: 127.0.0.1:7472, tenants: [1]}]\n", []string{"has 64 characters: use at most 63"}},
		{"two peers of one name in two domains", withPeer + "peers: [{identity: vnic://a/host/b, underlay: 10.0.0.2, cm: 127.0.0.1:7472, tenants: [1]}, {identity: vnic://c/host/b, underlay: 10.0.0.3, cm: 127.0.0.1:7472, tenants: [2]}]\n", []string{"peers[1]: NIC b is already described in peers[0]"}},
		{"peer at our address", withPeer + "peers: [{host: 2, underlay: 10.0.0.1, cm: 127.0.0.1:7472, identity: a, tenants: [1]}]\n", []string{"peers[0].underlay: 10.0.0.1 cannot be the peer's address"}},
		{"peer at a multicast address", withPeer + "peers: [{host: 2, underlay: 224.0.0.1, cm: 127.0.0.1:7472, identity: a, tenants: [1]}]\n", []string{"peers[0].underlay: 224.0.0.1 cannot be the peer's address"}},
		{"peer twice", withPeer + "peers: [" + peer2 + ", " + peer2 + "]\n", []string{"peers[1]: NIC 2 is already described in peers[0]", "peers[1].underlay: 10.0.0.2 is already used by peers[0]"}},
		{"peer empty", withPeer + "peers: [{}]\n", []string{"peers[0].name: missing", "peers[0].underlay: missing", "peers[0].tenants: missing"}},
		{"peer far", withPeer + "peers: [{host: 2, underlay: 10.9.0.2, cm: 127.0.0.1:7472, identity: a, tenants: [1]}]\n", []string{"10.9.0.2 is outside 10.0.0.0/24 and uplink.gateway is not set"}},
		{"peer cm", withPeer + "peers: [{host: 2, underlay: 10.0.0.2, cm: localhost, identity: a, tenants: [1]}]\n", []string{`peers[0].cm: "localhost" has no port; write address and port`}},
		{
			"tenant shared", withPeer + "peers: [" + peer2 + ", {host: 3, underlay: 10.0.0.3, cm: 127.0.0.1:7473, identity: b, tenants: [1]}]\n",
			[]string{"peers[0].functions: tenant 1 is shared by 2 peers"},
		},
		{"tenant 0", withPeer + "peers: [{host: 2, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: a, tenants: [0]}]\n", []string{"peers[0].tenants[0]: 0 is not a tenant"}},
		{
			"peer function tenant", withPeer + "peers: [{host: 2, underlay: 10.0.0.2, cm: 127.0.0.1:7472, identity: a, tenants: [1], functions: [{tenant: 2, address: 192.168.1.1}]}]\n",
			[]string{"peers[0].functions[0].tenant: 2 is not among the peer's tenants"},
		},
		{"pf twice", base + "functions: [{pf: 0}, {pf: 0}]\n", []string{"functions[1].pf: 0 is already described in functions[0]"}},
		{"pf range", base + "functions: [{pf: 16}]\n", []string{"functions[0].pf: 16 is out of range"}},
		{"vf twice", base + "functions: [{pf: 0, vfs: [{vf: 1}, {vf: 1}]}]\n", []string{"functions[0].vfs[1].vf: 1 is already described in vfs[0]"}},
		{"vf 0", base + "functions: [{pf: 0, vfs: [{vf: 0}]}]\n", []string{"functions[0].vfs[0].vf: 0 is out of range"}},
		{"vf_count", base + "functions: [{pf: 0, vf_count: 1, vfs: [{vf: 1}, {vf: 2}]}]\n", []string{"functions[0].vfs[1].vf: 2 is above vf_count, 1"}},
		{"guarantee above limit", base + "functions: [{pf: 0, credits: {data_packet_tx: 5}, guarantee: {data_packet_tx: 6}}]\n", []string{"functions[0].guarantee.data_packet_tx: 6 is more than the 5"}},
		{
			"guarantees above host", base + "credits: {host: {request_packet_tx: 10}}\nfunctions: [{pf: 0, tenant: 1, address: 192.168.100.1, guarantee: {request_packet_tx: 6}, vfs: [{vf: 1, tenant: 1, address: 192.168.100.2, guarantee: {request_packet_tx: 6}}]}]\n",
			[]string{"credits.host.request_packet_tx: 12 are guaranteed to functions, but there are only 10"},
		},
		{"host above NIC", base + "credits: {nic: {data_buffer_tx: 10}, host: {data_buffer_tx: 11}}\n", []string{"credits.host.data_buffer_tx: 11 is more than the NIC has, 10"}},
		{"enabled without tenant", base + "functions: [{pf: 0, vfs: [{vf: 1, enabled: true}]}]\n", []string{"functions[0].vfs[0].enabled: true, but the function has no tenant"}},
		{"link", base + "functions: [{pf: 0, link: up}]\n", []string{`functions[0].link: "up" is not a link state`}},
		{"no tenant", base + "functions: [{pf: 0, address: 192.168.100.1}]\n", []string{"functions[0].tenant: missing or 0"}},
		{"no address", base + "functions: [{pf: 0, tenant: 1}]\n", []string{"functions[0].address: missing"}},
		{
			"address twice", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, vfs: [{vf: 1, tenant: 1, address: 192.168.100.1}]}]\n",
			[]string{"functions[0].vfs[0].address: 192.168.100.1 in tenant 1 is already used by functions[0]"},
		},
		{"guest nobody serves", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, guest: {cid: 3}}]\n", []string{"functions[0].guest.cid: nothing under attach serves guest 3"}},
		{"guest unix unknown", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, guest: {unix: a}}]\n", []string{`functions[0].guest.unix: no unix attachment is named "a"`}},
		{"service unknown", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, service: chargen}]\n", []string{`functions[0].service: "chargen" is not a service; write echo, memory or pattern`}},
		{"service and guest", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, guest: {unix: a}, service: echo}]\nattach: [{type: unix, name: a, socket: /a}]\n", []string{"functions[0].service: the function also has a guest; leave out guest or service"}},
		{"service nowhere", base + "functions: [{pf: 0, service: echo}]\n", []string{"functions[0].service: the function has no address; give it a tenant and an address"}},
		{"guest both", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, guest: {cid: 3, unix: a}}]\n", []string{"functions[0].guest: must name either cid or unix"}},
		{"limits", base + "functions: [{pf: 0, limits: {qp: 1000000, qp_entries: 1000, page_lists: 2G}}]\n", []string{"functions[0].limits.page_lists: 2147483648 bytes are too much", "functions[0].limits.qp: 1000000 is out of range", "functions[0].limits.qp_entries: 1000 is not a power of two"}},
		{"attach type", base + "attach: [{type: pcie}]\n", []string{`attach[0].type: "pcie" is not known; write one of vhost-user, unix, vsock, vfio-user`}},
		{"attach no type", base + "attach: [{}]\n", []string{"attach[0].type: missing"}},
		{"windows elsewhere", base + "attach: [{type: unix, socket: /a, windows: true}, {type: vsock, windows: true}]\n", []string{"attach[0].windows:", "attach[1].windows:"}},
		{
			"window socket too long", base + "functions: [{pf: 0, tenant: 1, address: 192.168.100.1, guest: {cid: 3}}]\nattach: [{type: vhost-user, cid: 3, windows: true, socket: /" + strings.Repeat("s", 104) + "}]\n",
			[]string{"attach[0].socket: the socket of a window"},
		},
		{
			"too many windows", base + "functions:\n  - pf: 0\n    vf_count: 200\n    vfs:\n" + manyVFs(161) + "attach: [{type: vhost-user, cid: 3, windows: true, socket: /a}]\n",
			[]string{"attach[0].windows: guest 3 has 161 functions"},
		},
		{"attach no socket", base + "attach: [{type: unix}]\n", []string{"attach[0].socket: missing"}},
		{"attach socket twice", base + "control: /a\nattach: [{type: unix, socket: /a}]\n", []string{`attach[0].socket: "/a" is already used by control`}},
		{"attach cid", base + "attach: [{type: vhost-user, socket: /a, cid: 2}]\n", []string{"attach[0].cid: 2 is not a guest's vsock context id"}},
		{"attach cid twice", base + "attach: [{type: vhost-user, socket: /a, cid: 3}, {type: vhost-user, socket: /b, cid: 3}]\n", []string{"attach[1].cid: 3 is already used by attach[0]"}},
		{"vfio-user without guest", base + "attach: [{type: vfio-user, socket: /a}]\n", []string{"attach[0].cid: 0 is not a guest's"}},
		{"vfio-user with windows", base + "attach: [{type: vfio-user, socket: /a, cid: 3, windows: true}]\n", []string{"attach[0].windows: has no meaning for type vfio-user"}},
		{"vfio-user and vhost-user", base + "attach: [{type: vhost-user, socket: /a, cid: 3}, {type: vfio-user, socket: /b, cid: 3}]\n", []string{"attach[1].cid: 3 is already used by attach[0]"}},
		{"pci elsewhere", base + "attach: [{type: vhost-user, socket: /a, cid: 3, pci: {vendor: 0x1234}}]\n", []string{"attach[0].pci: has no meaning for type vhost-user"}},
		{"pci id", base + "attach: [{type: vfio-user, socket: /a, cid: 3, pci: {vendor: 0x12345}}]\n", []string{`"0x12345" is not a PCI id`}},
		{"pci interrupts", base + "attach: [{type: vfio-user, socket: /a, cid: 3, pci: {interrupts: intx}}]\n", []string{`attach[0].pci.interrupts: "intx" is not known; write one of msix, msi`}},
		{"attach needless", base + "attach: [{type: vhost-user, socket: /a, cid: 3, port: 4}]\n", []string{"attach[0].port: has no meaning for type vhost-user"}},
		{"vsock ram", base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{size: 1}]}]}]\n", []string{"attach[0].ram[0].layout[0]", "not whole 4 KiB pages"}},
		{"a number that is none", base + "falcon: {cc: {fabric_ai: .nan}}\n", []string{"falcon.cc.fabric_ai"}},
		{"a number too large", base + "falcon: {cc: {fabric_ai: 1e19}}\n", []string{"falcon.cc.fabric_ai", "is not a number; write it as 0.5"}},
		{"a number too small", base + "falcon: {cc: {fabric_ai: -1e19}}\n", []string{"falcon.cc.fabric_ai", "is not a number; write it as 0.5"}},
		{"not a number", base + "falcon: {cc: {fabric_ai: NaN}}\n", []string{"falcon.cc.fabric_ai", "is not a number; write it as 0.5"}},
		{"vsock ram without size", base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{address: 4K}]}]}]\n", []string{"not whole 4 KiB pages"}},
		{"vsock ram address", base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{size: 4K, address: 1}]}]}]\n", []string{"not whole 4 KiB pages"}},
		{"vsock ram offset", base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{size: 4K, offset: 2}]}]}]\n", []string{"not whole 4 KiB pages"}},
		{"vsock ram overlap", base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{size: 8K}, {address: 4K, size: 4K}]}]}]\n", []string{"attach[0].ram[0].layout[1]: overlaps layout[0]"}},
		{"capture", base + "capture: {mode: all}\n", []string{"capture.file: missing", `capture.mode: "all"`}},
		{"list for map", base + "log: [info]\n", []string{"log: a list where a group of keys is expected"}},
		{"map for list", base + "functions: {pf: 0}\n", []string{"functions: a group of keys where a list is expected"}},
		{"map for scalar", base + "control: {a: b}\n", []string{"control: a group of keys where a single value is expected"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse([]byte(tc.yaml))
			if err == nil {
				t.Fatalf("accepted:\n%s", tc.yaml)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in:\n%v", w, err)
				}
			}
		})
	}
}

// TestAllProblemsAtOnce checks that one run reports every problem, in file order.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse([]byte(`
nic: {host: 0}
log: {level: loud}
uplink: {name: vnic1, address: nowhere}
rdma: {mtu: 7}
`))
	var ps Problems
	if !errors.As(err, &ps) {
		t.Fatalf("error %T", err)
	}
	want := []string{"nic.host", "log.level", "uplink.address", "rdma.mtu"}
	if len(ps) != len(want) {
		t.Fatalf("%d problems:\n%v", len(ps), err)
	}
	for i, p := range ps {
		if p.Path != want[i] || p.Line != i+2 || p.Remedy == "" {
			t.Errorf("problem %d: %+v", i, p)
		}
	}
}

// TestAProblemIsReportedOnce: if a value could not be read, no check reports it, a part of it, or its group a
// second time; problems of its neighbours are reported.
func TestAProblemIsReportedOnce(t *testing.T) {
	for _, c := range []struct {
		early, late string
		repeats     bool
	}{
		{"nic", "nic", true},
		{"nic", "nic.host", true},
		{"nic.host", "nic", true},
		{"peers", "peers[0].host", true},
		{"peers[0]", "peers[0].host", true},
		{"peers[0].host", "peers[0]", true},
		{"peers[0].host", "peers", false}, // of the list as a whole there may be more to say
		{"nic", "nics", false},
		{"nics", "nic", false},
		{"peers[1]", "peers[10]", false},
		{"nic.host", "nic.name", false},
		{"peers[0]", "peers[1].host", false},
	} {
		early := []Problem{{Path: "x"}, {Path: c.early}, {Path: "y.z"}}
		late := []Problem{{Path: "a"}, {Path: c.late}, {Path: "b"}}
		want := []Problem{late[0], late[1], late[2]}
		if c.repeats {
			want = []Problem{late[0], late[2]}
		}
		if got := withoutRepeats(early, late); !reflect.DeepEqual(got, want) {
			t.Errorf("after %s: %v, want %v", c.early, got, want)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	_, err := Parse([]byte("nic: {" + strings.Repeat("a: 1, ", 5000) + "}"))
	var ps Problems
	if errors.As(err, &ps) && len(ps) > maxProblems {
		t.Errorf("%d problems", len(ps))
	}
	if _, err := Parse(make([]byte, maxFileSize+1)); err == nil {
		t.Error("oversized file accepted")
	}
}

// FuzzParse: whatever the file, Parse answers with a checked configuration or
// with Problems.
func FuzzParse(f *testing.F) {
	b, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(minimal))
	f.Add([]byte("nic: {host: 1}\nfunctions: [{pf: 0, vfs: [{vf: 1}]}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [a]\n: b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		var ps Problems
		if err != nil && (!errors.As(err, &ps) || len(ps) == 0) {
			t.Fatalf("error %T: %v", err, err)
		}
		if err == nil && (c.NIC.Host == 0 || len(c.Functions) == 0) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

func manyVFs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "      - {vf: %d, tenant: 1, address: 192.168.100.%d, guest: {cid: 3}}\n", i+1, i+1)
	}
	return b.String()
}

// port returns a VF of tenant 1 with address 10.1.0.1 and a port.
func port(p string) string {
	return "functions: [{pf: 0, vfs: [{vf: 1, tenant: 1, address: 10.1.0.1, port: " + p + "}]}]\n"
}

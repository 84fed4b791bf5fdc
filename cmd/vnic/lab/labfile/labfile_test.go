package labfile_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/config"
)

// good is a lab that uses every section.
const good = `
name: good
defaults: {config: {psp: {rotate_every: 5s}}}
hosts: {a: {config: {nic: {shards: 2}}}, b: {}, c: }
links:
  - {endpoints: [a, b], mtu: 4500, delay: 50us, loss: 0.1%, ends: {b: {rate: 1G}}}
  - {name: alone, endpoints: [c]}
tenants: {red: {subnet: 10.0.0.0/24}, blue: {subnet: fd00::/64}}
machines:
  red1: {host: a, tenant: red, address: 10.0.0.7}
  blue1: {host: b, tenant: blue, exec: [iperf3 -sD]}
validate:
  - {run: [red1, ping, -c1, 10.0.0.7]}
  - {name: no, run: [a, "false"], with: [b, sleep, 9], fails: true, output: "^$", wait: 5s, timeout: 1s}
`

func TestAFileSaysWhatALabIs(t *testing.T) {
	l, err := labfile.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	ab := l.LinkOf("a")
	if ab.Name != "a-b" || ab.MTU != 4500 || ab.Sends("a").Delay != 50*time.Microsecond || ab.Sends("b").Delay != 0 || ab.Sends("b").Rate != 1e9 {
		t.Errorf("link %+v", ab)
	}
	if alone := l.LinkOf("c"); alone.Name != "alone" || alone.MTU != labfile.DefaultMTU || alone.Sends("c").On() {
		t.Errorf("link %+v", alone)
	}
	if m := l.MachinesOf("a"); len(m) != 1 || m[0].Name != "red1" || m[0].Address != netip.MustParseAddr("10.0.0.7") {
		t.Errorf("machines %+v", m)
	}
	if v := l.Validate[0]; v.Name != "red1 ping -c1 10.0.0.7" || v.Timeout != labfile.DefaultTimeout {
		t.Errorf("check %+v", v)
	}
}

func TestWhatIsLeftOutIsPlain(t *testing.T) {
	l, err := labfile.Parse([]byte("name: x\nhosts: {b: {}, a: {}}\nmachines: {m: {host: a}}"))
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Links) != 1 || l.LinkOf("a") != l.LinkOf("b") || l.LinkOf("a").Name != "all" {
		t.Errorf("links %+v", l.Links)
	}
	if len(l.Tenants) != 1 || l.Machines[0].Tenant != l.Tenants[0].Name {
		t.Errorf("tenants %+v, machine %+v", l.Tenants, l.Machines[0])
	}
	if l.Hosts[0].Name != "b" {
		t.Errorf("hosts are not in the file's order: %+v", l.Hosts)
	}
}

// TestWhatIsWrongIsSaid: each error names the line, the path, the value and what to do.
func TestWhatIsWrongIsSaid(t *testing.T) {
	const head = "name: x\nhosts: {a: {}, b: {}}\n"
	for _, tc := range []struct{ file, want string }{
		{"", "name: missing; give a short word, as two-hosts\nhosts: missing; name one or more, as hosts: {a: {}, b: {}}"},
		{"name: X\nhosts: {a: {}}", `line 1: name: "X" is not a name; use small letters, digits and -, with a letter first and no - at the end`},
		{"name: x-\nhosts: {a: {}}", `line 1: name: "x-" is not a name; use small letters, digits and -, with a letter first and no - at the end`},
		{"name: ../x\nhosts: {a: {}}", `line 1: name: "../x" is not a name; use small letters, digits and -, with a letter first and no - at the end`},
		{"name: x\nhosts: {a-name-of-sixteen: {}}", `line 2: hosts.a-name-of-sixteen: "a-name-of-sixteen" has 17 characters; use at most 15`},
		{"name: x\nhosts: {br0: {}}", `line 2: hosts.br0: "br0" is a name that the lab itself uses; use another one`},
		{"name: x\nhosts: [a, b]", "line 2: hosts: a list where a group of names is expected; write each as NAME: {…}, or NAME: {} where it needs no keys"},
		{"name: x\nhosts: {a: {}, a: {}}", "line 2: hosts.a: given twice, first on line 2; keep one of them"},
		{"name: x\nhosts: {a: {shard: 2}}", `line 2: hosts.a.shard: unknown key; known here: config, uplink`},
		{"name: x\nhosts: {a: {uplink: tcp}}", `line 2: hosts.a.uplink: "tcp" is not known; write one of tap, udp`},
		{"name: x\nhosts: {a: {config: 7}}", "line 2: hosts.a.config: not a group of keys; write sections of a NIC's configuration under it, as {nic: {shards: 2}}"},
		{"name: x\nhosts: {a: {config: {uplink: {speed: 10G, mtu: 1500}}}}", "line 2: hosts.a.config: uplink.mtu is written by the lab; leave it out"},
		{"name: x\nhosts: {a: {config: {nic: &n {shards: 2}}}, b: {config: {nic: *n}}}", "line 2: hosts.b.config: aliases are not supported; write the value out"},
		{"name: x\nhost: {a: {}}", `line 2: host: unknown key; did you mean "hosts"?`},
		{head + "directory: consul", `line 3: directory: "consul" is not known; write one of static, etcd`},
		{head + "directory: etcd\nlinks: [{endpoints: [a]}, {endpoints: [b]}]", "line 4: links: 2 links, and the hosts of a fleet and its etcd reach each other; put all hosts in one link, or leave directory out"},
		{head + "directory: etcd\nmachines: {etcd: {host: a}}", "line 4: machines.etcd: etcd is the name of the directory; use another one"},
		{head + "validate: [{run: [etcd, ls]}]", `line 3: validate[0].run[0]: there is no machine or host "etcd"; add machines first; the file has none`},
		{head + "links: [{endpoints: [a, z]}]", "line 3: links[0].endpoints[1]: there is no host \"z\"; write one of a, b\nline 3: links: host b is at none of the links; name it in the endpoints of one, or leave links out: all hosts are then on one switch"},
		{head + "links: [{endpoints: [a, b]}, {endpoints: [a]}]", "line 3: links[1].endpoints[0]: host a is already at links[0]; a NIC has one uplink: name each host once, and all hosts of a switch in one link"},
		{head + "links: [{endpoints: [a, b], mtu: 99999}]", "line 3: links[0].mtu: 99999 is out of range; use 576 to 65521"},
		{head + "links: [{endpoints: [a, b], loss: 101%}]", `line 3: links[0].loss: "101%" is not a share of packets; write 0% to 100%, or 0 to 1`},
		{head + "links: [{endpoints: [a, b], delay: 11s}]", "line 3: links[0].delay: 11s is out of range; use 0s to 10s"},
		{head + "links: [{endpoints: [a, b], ends: {c: {loss: 1%}}}]", `line 3: links[0].ends.c: "c" is not an endpoint of the link; name one of a, b`},
		{head + "tenants: {red: {}}", "line 3: tenants.red.subnet: missing; give the tenant's network, as 10.0.0.0/24"},
		{head + "tenants: {red: {subnet: 10.0.0.1/24}}", "line 3: tenants.red.subnet: 10.0.0.1/24 is an address in a network; write the network, 10.0.0.0/24"},
		{head + "tenants: {red: {subnet: 10.0.0.0/31}}", "line 3: tenants.red.subnet: 10.0.0.0/31 has no room for machines, or too much; use /8 to /30, or /8 to /126 with IPv6"},
		{head + "tenants: {red: {subnet: 10.0.0.0/31}}\nmachines: {m: {host: a, address: 10.0.0.1}, n: {host: a}}", "line 3: tenants.red.subnet: 10.0.0.0/31 has no room for machines, or too much; use /8 to /30, or /8 to /126 with IPv6"},
		{head + "tenants: {red: {subnet: 224.0.0.0/24}}", "line 3: tenants.red.subnet: 224.0.0.0/24 is not for machines; use a private network, as 10.0.0.0/24"},
		{head + "machines: {m: {}}", "line 3: machines.m.host: missing; write one of a, b"},
		{head + "machines: {m: {host: c}}", `line 3: machines.m.host: there is no host "c"; write one of a, b`},
		{head + "machines: {a: {host: a}}", "line 3: machines.a: a is also the name of a host; use another one"},
		{head + "tenants: {r: {subnet: 10.0.0.0/24}, s: {subnet: 10.0.0.0/24}}\nmachines: {m: {host: a}}", "line 4: machines.m.tenant: missing; write one of r, s"},
		{head + "tenants: {r: {subnet: 10.0.0.0/24}}\nmachines: {m: {host: a, address: 10.0.1.1}}", "line 4: machines.m.address: 10.0.1.1 is not an address for a machine in 10.0.0.0/24, the subnet of tenant r; use another one, or leave it out: the machine gets one"},
		{head + "tenants: {r: {subnet: 10.0.0.0/24}}\nmachines: {m: {host: a, address: 10.0.0.255}}", "line 4: machines.m.address: 10.0.0.255 is not an address for a machine in 10.0.0.0/24, the subnet of tenant r; use another one, or leave it out: the machine gets one"},
		{head + "tenants: {r: {subnet: 10.0.0.0/24}}\nmachines: {m: {host: a, address: 10.0.0.1}, n: {host: b, address: 10.0.0.1}}", "line 4: machines.n.address: 10.0.0.1 is the address of machine m; use another one, or leave it out: the machine gets one"},
		{head + "tenants: {r: {subnet: 10.0.0.0/30}}\nmachines: {m: {host: a}, n: {host: a}, o: {host: b}}", "line 4: machines.o.tenant: the 2 addresses of tenant r are all used; give tenants.r a larger subnet"},
		{head + "machines: {m: {host: a, guest: {port: tcp}}}", `line 3: machines.m.guest.port: "tcp" is not known; write one of vhost-user, tap`},
		{head + "machines: {m: {host: a, guest: {function: pci}}}", `line 3: machines.m.guest.function: "pci" is not known; write one of vsock, window, vfio-user`},
		{head + "machines: {m: {host: a, guest: {memory: 10M}}}", "line 3: machines.m.guest.memory: 10M is not the memory of a guest; use whole MiB, 256M or more"},
		{head + "machines: {m: {host: a, guest: {cpus: 999}}}", "line 3: machines.m.guest.cpus: 999 is out of range; use 1 to 255"},
		{head + "machines: {m: {host: a, guest: {image: x, packages: [strace]}}}", "line 3: machines.m.guest.packages: the image is made already; leave image or packages out"},
		{head + "machines: {m: {host: a, guest: {packages: ['-o=evil']}}}", `line 3: machines.m.guest.packages[0]: "-o=evil" is not a package's name; write it as apt has it`},
		{head + "machines: {m: {host: a, guest: {driver: d, function: vsock}}}", "line 3: machines.m.guest.driver: the Linux driver finds no function over vsock; use function: window or vfio-user"},
		{head + "machines: {m: {host: a, guest: {disk: x, image: y}}}", "line 3: machines.m.guest.disk: the guest boots from an image; leave image or disk out"},
		{head + "machines: {m: {host: a, guest: {disk: x, kernel: debug}}}", "line 3: machines.m.guest.kernel: the disk is made already; leave disk or kernel out; vnic image --disk takes packages and modules"},
		{head + "machines: {m: {host: a, guest: {modules: [../x]}}}", `line 3: machines.m.guest.modules[0]: "../x" is not a module's name; write it as modprobe takes it`},
		{head + "machines: {m: {host: a, service: chargen}}", `line 3: machines.m.service: "chargen" is not known; write one of echo, memory, pattern`},
		{head + "machines: {m: {host: a, service: echo, guest: {}}}", "line 3: machines.m.service: the NIC itself is this machine; leave guest and exec out"},
		{head + "machines: {m: {host: a, service: echo}}\nvalidate: [{run: [m, true]}]", `line 4: validate[0].run[0]: there is no machine or host "m"; add machines first; the file has none`},
		{head + "validate: [{run: [a]}]", "line 3: validate[0].run: no machine with a command; write where it runs and what, as [red1, ping, -c1, red2]"},
		{head + "validate: [{run: [z, true]}]", `line 3: validate[0].run[0]: there is no machine or host "z"; add machines first; the file has none`},
		{head + "validate: [{run: [a, true], output: '('}]", "line 3: validate[0].output: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(`; put a \\ before characters that stand for themselves"},
		{head + "validate: [{run: [a, true], wait: 2h}]", "line 3: validate[0].wait: 2h0m0s is out of range; use 0s to 1h0m0s"},
		{"name: x\nhosts:\n\ta: {}", "line 3: not YAML: it is indented by a tab"},
	} {
		_, err := labfile.Parse([]byte(tc.file))
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s\n got %v\nwant %s", tc.file, err, tc.want)
		}
	}
}

func TestALabHasBoundedSize(t *testing.T) {
	var hosts, machines strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&hosts, " h%d: {}\n", i)
	}
	for i := range 1001 {
		fmt.Fprintf(&machines, " m%d: {host: h0}\n", i)
	}
	_, err := labfile.Parse([]byte("name: x\ntenants: {t: {subnet: 10.0.0.0/8}}\nhosts:\n" + hosts.String() + "machines:\n" + machines.String()))
	const want = "line 3: hosts: 1001 hosts; use at most 1000\nline 1005: machines: 1001 machines; use at most 1000"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestShippedLabsAreGood: the name of each is that of its file.
func TestShippedLabsAreGood(t *testing.T) {
	names := labfile.Shipped()
	if len(names) == 0 {
		t.Fatal("none")
	}
	for _, name := range names {
		l, _, err := labfile.Load(name)
		if err != nil {
			t.Error(err)
		} else if l.Name != name || len(l.Validate) == 0 {
			t.Errorf("%s: name %s, %d checks", name, l.Name, len(l.Validate))
		}
	}
}

func TestALabThatIsNotThere(t *testing.T) {
	for arg, want := range map[string]string{
		"nosuch":        `there is no lab "nosuch"; give the path of a file (./nosuch.yaml), or one of `,
		"./nosuch.yaml": "lab: open ./nosuch.yaml: no such file or directory; give the path of a file, or one of ",
	} {
		if _, _, err := labfile.Load(arg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// FuzzParse: a bad file is refused and does no harm, and the lab of a good one refers to nothing that
// it lacks.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	for _, name := range labfile.Shipped() {
		_, text, err := labfile.Load(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := labfile.Parse(text)
		if err != nil {
			var _ config.Problems = err.(config.Problems) // each with its place
			return
		}
		for _, h := range l.Hosts {
			if l.LinkOf(h.Name) == nil {
				t.Errorf("host %s has no link", h.Name)
			}
		}
		for _, m := range l.Machines {
			free := l.Tenant(m.Tenant).Free(func(netip.Addr) bool { return false })
			if !l.Tenant(m.Tenant).Subnet.Contains(free) {
				t.Errorf("tenant %s gives out %s", m.Tenant, free)
			}
		}
	})
}

// TestAChangeTakesThePlaceOfWhatTheFileSays: value by value, and what is wrong with the file itself is told
// by its own lines.
func TestAChangeTakesThePlaceOfWhatTheFileSays(t *testing.T) {
	text, err := labfile.Change([]byte(good), "name: other\nmachines: {red1: {guest: {memory: 1G}}}", "machines: {red1: {guest: {cpus: 2}}}")
	if err != nil {
		t.Fatal(err)
	}
	l, err := labfile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if g := l.MachinesOf("a")[0].Guest; l.Name != "other" || g == nil || g.Memory != 1<<30 || g.CPUs != 2 {
		t.Errorf("%s", text)
	}
	if m := l.MachinesOf("a")[0]; m.Tenant != "red" || m.Address.String() != "10.0.0.7" {
		t.Errorf("machine %+v", m)
	}
	if _, err := labfile.Change([]byte("name: x\nhosts: {a: {}}\nmachines:\n  m: {host: b}\n"), "name: y"); err == nil || !strings.Contains(err.Error(), "line 4: machines.m.host") {
		t.Errorf("%v", err)
	}
}

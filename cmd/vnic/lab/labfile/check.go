package labfile

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/falcon-vnic/vnic/device/config"
)

// Limits of a lab.
const (
	maxLabName = 32
	maxName    = 15 // interfaces are named after hosts and machines
	MaxHosts   = 1000
	maxRows    = 1000 // tenants, machines, checks
	minMTU     = 576
	maxMTU     = 65521
	maxTime    = time.Hour
	minMemory  = config.Size(256 << 20) // of a guest
)

var (
	word     = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	debian   = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	module   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	reserved = regexp.MustCompile(`^(lo|all|br0|up0|cable|sw[0-9]*)$`)
)

// written are the keys of a NIC's configuration that the lab writes itself.
var written = []string{
	"nic.host", "nic.name", "control", "uplink.type", "uplink.listen", "uplink.backend", "uplink.name", "uplink.bridge", "uplink.mtu", "uplink.mac", "uplink.address",
	"uplink.impair", "cm", "peers", "directory", "tenants", "functions", "attach",
}

// checker finds what is wrong with the values of a lab. Names refer to what was checked before.
type checker struct {
	lab *Lab
	add func(path, what, remedy string)
}

func (c *checker) checkLab() {
	l := c.lab
	c.name("name", l.Name, maxLabName)
	c.oneOf("directory", l.Directory, DirectoryStatic, DirectoryEtcd)
	c.config("defaults.config", &l.Defaults.Config)
	c.hosts()
	c.links()
	c.tenants()
	c.machines()
	c.checks()
}

// name checks a name of which those of namespaces, interfaces and files are made.
func (c *checker) name(path, name string, most int) {
	switch {
	case name == "":
		c.add(path, "missing", "give a short word, as two-hosts")
	case len(name) > most:
		c.add(path, fmt.Sprintf("%.100q has %d characters", name, len(name)), fmt.Sprintf("use at most %d", most))
	case !word.MatchString(name):
		c.add(path, fmt.Sprintf("%q is not a name", name), "use small letters, digits and -, with a letter first and no - at the end")
	case reserved.MatchString(name):
		c.add(path, fmt.Sprintf("%q is a name that the lab itself uses", name), "use another one")
	}
}

// place checks the name of a host or machine.
func (c *checker) place(path, name string) {
	c.name(path, name, maxName)
	if name == DirectoryEtcd && c.lab.Directory == DirectoryEtcd {
		c.add(path, "etcd is the name of the directory", "use another one")
	}
}

func (c *checker) hosts() {
	l := c.lab
	switch {
	case len(l.Hosts) == 0:
		c.add("hosts", "missing", "name one or more, as hosts: {a: {}, b: {}}")
	case len(l.Hosts) > MaxHosts:
		c.add("hosts", fmt.Sprintf("%d hosts", len(l.Hosts)), fmt.Sprintf("use at most %d", MaxHosts))
	}
	for i := range l.Hosts {
		h := &l.Hosts[i]
		c.place("hosts."+h.Name, h.Name)
		c.config("hosts."+h.Name+".config", &h.Config)
		c.oneOf("hosts."+h.Name+".uplink", h.Uplink, config.UplinkTAP, config.UplinkUDP)
	}
}

// config checks that sections of a NIC's configuration are none of those that the lab writes. Whether
// the values are good is checked when the whole configuration is put together.
func (c *checker) config(path string, n *yaml.Node) {
	if n.IsZero() || n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		c.add(path, "not a group of keys", "write sections of a NIC's configuration under it, as {nic: {shards: 2}}")
		return
	}
	if hasAlias(n) {
		c.add(path, "aliases are not supported", "write the value out")
		return
	}
	var walk func(n *yaml.Node, at string)
	walk = func(n *yaml.Node, at string) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := strings.TrimPrefix(at+"."+n.Content[i].Value, ".")
			if slices.Contains(written, key) {
				c.add(path, fmt.Sprintf("%s is written by the lab", key), "leave it out")
			} else if n.Content[i+1].Kind == yaml.MappingNode {
				walk(n.Content[i+1], key)
			}
		}
	}
	walk(n, "")
}

func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}

func (c *checker) links() {
	at := map[string]string{} // host → link
	names := map[string]bool{}
	for i := range c.lab.Links {
		k := &c.lab.Links[i]
		path := fmt.Sprintf("links[%d]", i)
		if len(k.Endpoints) == 0 {
			c.add(path+".endpoints", "missing", "name the hosts that the link joins, as [a, b]")
		}
		for j, e := range k.Endpoints {
			p := fmt.Sprintf("%s.endpoints[%d]", path, j)
			switch other, twice := at[e]; {
			case !c.isHost(e):
				c.add(p, fmt.Sprintf("there is no host %.100q", e), c.known("hosts"))
			case twice:
				c.add(p, fmt.Sprintf("host %s is already at %s", e, other), "a NIC has one uplink: name each host once, and all hosts of a switch in one link")
			}
			at[e] = path
		}
		if names[k.Name] {
			c.add(path+".name", fmt.Sprintf("%.100q is the name of another link", k.Name), "use another one")
		}
		names[k.Name] = true
		if k.MTU < minMTU || k.MTU > maxMTU {
			c.add(path+".mtu", fmt.Sprintf("%d is out of range", k.MTU), fmt.Sprintf("use %d to %d", minMTU, maxMTU))
		}
		c.impairment(path, k.Impairment)
		for _, e := range k.Ends {
			p := path + ".ends." + e.Host
			if !slices.Contains(k.Endpoints, e.Host) {
				c.add(p, fmt.Sprintf("%.100q is not an endpoint of the link", e.Host), "name one of "+strings.Join(k.Endpoints, ", "))
			}
			c.impairment(p, e.Impairment)
		}
	}
	if c.lab.Directory == DirectoryEtcd && len(c.lab.Links) > 1 {
		c.add("links", fmt.Sprintf("%d links, and the hosts of a fleet and its etcd reach each other", len(c.lab.Links)), "put all hosts in one link, or leave directory out")
	}
	for _, h := range c.lab.Hosts {
		if at[h.Name] == "" {
			c.add("links", fmt.Sprintf("host %s is at none of the links", h.Name), "name it in the endpoints of one, or leave links out: all hosts are then on one switch")
		}
	}
}

// impairment adds the problems of the values of an impairment, as a NIC's configuration has them.
func (c *checker) impairment(path string, i config.Impairment) {
	if problems, ok := i.Check().(config.Problems); ok {
		for _, p := range problems {
			c.add(path+"."+p.Path, p.What, p.Remedy)
		}
	}
}

func (c *checker) tenants() {
	if len(c.lab.Tenants) > maxRows {
		c.add("tenants", fmt.Sprintf("%d tenants", len(c.lab.Tenants)), fmt.Sprintf("use at most %d", maxRows))
	}
	for _, t := range c.lab.Tenants {
		path := "tenants." + t.Name
		c.name(path, t.Name, maxName)
		if what, remedy := subnetProblem(t.Subnet); what != "" {
			c.add(path+".subnet", what, remedy)
		}
	}
}

// subnetProblem returns what is wrong with a tenant's subnet, "" if nothing.
func subnetProblem(p netip.Prefix) (what, remedy string) {
	switch {
	case !p.IsValid():
		return "missing", "give the tenant's network, as 10.0.0.0/24"
	case p != p.Masked():
		return fmt.Sprintf("%s is an address in a network", p), "write the network, " + p.Masked().String()
	case p.Bits() < 8 || p.Addr().BitLen()-p.Bits() < 2:
		return fmt.Sprintf("%s has no room for machines, or too much", p), "use /8 to /30, or /8 to /126 with IPv6"
	case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
		return fmt.Sprintf("%s is not for machines", p), "use a private network, as 10.0.0.0/24"
	}
	return "", ""
}

func (c *checker) machines() {
	if len(c.lab.Machines) > maxRows {
		c.add("machines", fmt.Sprintf("%d machines", len(c.lab.Machines)), fmt.Sprintf("use at most %d", maxRows))
	}
	type place struct {
		tenant  string
		address netip.Addr
	}
	taken, count := map[place]string{}, map[string]int{}
	for _, m := range c.lab.Machines {
		path := "machines." + m.Name
		c.place(path, m.Name)
		if c.isHost(m.Name) {
			c.add(path, fmt.Sprintf("%s is also the name of a host", m.Name), "use another one")
		}
		if m.Guest != nil {
			c.guest(path+".guest", m.Guest)
		}
		if m.Transport != "" {
			c.oneOf(path+".transport", m.Transport, config.Transports[:]...)
		}
		switch {
		case m.Service == "":
		case m.Guest != nil || len(m.Exec) > 0:
			c.add(path+".service", "the NIC itself is this machine", "leave guest and exec out")
		default:
			c.oneOf(path+".service", m.Service, config.ServiceEcho, config.ServiceMemory, config.ServicePattern)
		}
		switch {
		case m.Host == "":
			c.add(path+".host", "missing", c.known("hosts"))
		case !c.isHost(m.Host):
			c.add(path+".host", fmt.Sprintf("there is no host %.100q", m.Host), c.known("hosts"))
		}
		i := slices.IndexFunc(c.lab.Tenants, func(t Tenant) bool { return t.Name == m.Tenant })
		switch {
		case m.Tenant == "":
			c.add(path+".tenant", "missing", c.known("tenants"))
			continue
		case i < 0:
			c.add(path+".tenant", fmt.Sprintf("there is no tenant %.100q", m.Tenant), c.known("tenants"))
			continue
		}
		t := c.lab.Tenants[i]
		if what, _ := subnetProblem(t.Subnet); what != "" {
			continue // told already; its addresses mean nothing
		}
		if count[t.Name]++; !t.has(count[t.Name]) {
			c.add(path+".tenant", fmt.Sprintf("the %d addresses of tenant %s are all used", count[t.Name]-1, t.Name), fmt.Sprintf("give tenants.%s a larger subnet", t.Name))
		}
		if !m.Address.IsValid() {
			continue
		}
		at := place{m.Tenant, m.Address}
		switch other := taken[at]; {
		case !t.usable(m.Address):
			c.add(path+".address", fmt.Sprintf("%s is not an address for a machine in %s, the subnet of tenant %s", m.Address, t.Subnet, t.Name), "use another one, or leave it out: the machine gets one")
		case other != "":
			c.add(path+".address", fmt.Sprintf("%s is the address of machine %s", m.Address, other), "use another one, or leave it out: the machine gets one")
		default:
			taken[at] = m.Name
		}
	}
}

func (c *checker) guest(path string, g *Guest) {
	c.oneOf(path+".port", g.Port, PortVhostUser, PortTAP)
	c.oneOf(path+".function", g.Function, FunctionVsock, FunctionWindow, FunctionPCI)
	c.oneOf(path+".accel", g.Accel, "auto", "kvm", "tcg")
	if g.Image != "" && g.Disk != "" {
		c.add(path+".disk", "the guest boots from an image", "leave image or disk out")
	}
	for _, part := range []struct {
		key   string
		given bool
	}{{"packages", len(g.Packages) > 0}, {"modules", len(g.Modules) > 0}, {"driver", g.Driver != ""}, {"kernel", g.Kernel != ""}} {
		switch {
		case !part.given:
		case g.Image != "":
			c.add(path+"."+part.key, "the image is made already", "leave image or "+part.key+" out")
		case g.Disk != "":
			c.add(path+"."+part.key, "the disk is made already", "leave disk or "+part.key+" out; vnic image --disk takes packages and modules")
		}
	}
	if g.Driver != "" && g.Function == FunctionVsock {
		c.add(path+".driver", "the Linux driver finds no function over vsock", "use function: window or vfio-user")
	}
	if g.Memory < minMemory || g.Memory%(1<<20) != 0 {
		c.add(path+".memory", fmt.Sprintf("%s is not the memory of a guest", g.Memory), fmt.Sprintf("use whole MiB, %s or more", minMemory))
	}
	if g.CPUs < 1 || g.CPUs > 255 {
		c.add(path+".cpus", fmt.Sprintf("%d is out of range", g.CPUs), "use 1 to 255")
	}
	for i, p := range g.Packages {
		if !debian.MatchString(p) {
			c.add(fmt.Sprintf("%s.packages[%d]", path, i), fmt.Sprintf("%.100q is not a package's name", p), "write it as apt has it")
		}
	}
	for i, m := range g.Modules {
		if !module.MatchString(m) {
			c.add(fmt.Sprintf("%s.modules[%d]", path, i), fmt.Sprintf("%.100q is not a module's name", m), "write it as modprobe takes it")
		}
	}
}

func (c *checker) oneOf(path, value string, choices ...string) {
	if !slices.Contains(choices, value) {
		c.add(path, fmt.Sprintf("%.100q is not known", value), "write one of "+strings.Join(choices, ", "))
	}
}

func (c *checker) checks() {
	if len(c.lab.Validate) > maxRows {
		c.add("validate", fmt.Sprintf("%d checks", len(c.lab.Validate)), fmt.Sprintf("use at most %d", maxRows))
	}
	for i, v := range c.lab.Validate {
		path := fmt.Sprintf("validate[%d]", i)
		c.command(path+".run", v.Run)
		if v.With != nil {
			c.command(path+".with", v.With)
		}
		if _, err := v.Matches(""); err != nil {
			c.add(path+".output", fmt.Sprintf("%.100q is not a regular expression: %v", v.Output, err), `put a \ before characters that stand for themselves`)
		}
		if v.Wait < 0 || v.Wait > maxTime {
			c.add(path+".wait", fmt.Sprintf("%s is out of range", v.Wait), fmt.Sprintf("use 0s to %s", maxTime))
		}
		if v.Timeout < 0 || v.Timeout > maxTime {
			c.add(path+".timeout", fmt.Sprintf("%s is out of range", v.Timeout), fmt.Sprintf("use 1s to %s", maxTime))
		}
	}
}

// command checks where a command of a check runs.
func (c *checker) command(path string, words []string) {
	switch {
	case len(words) < 2:
		c.add(path, "no machine with a command", "write where it runs and what, as [red1, ping, -c1, red2]")
	case !c.isHost(words[0]) && !c.isMachine(words[0]) && (words[0] != DirectoryEtcd || c.lab.Directory != DirectoryEtcd):
		c.add(path+"[0]", fmt.Sprintf("there is no machine or host %.100q", words[0]), c.known("machines"))
	}
}

func (c *checker) isHost(name string) bool {
	return slices.ContainsFunc(c.lab.Hosts, func(h Host) bool { return h.Name == name })
}

func (c *checker) isMachine(name string) bool {
	return slices.ContainsFunc(c.lab.Machines, func(m Machine) bool { return m.Name == name && m.Service == "" })
}

// shown is how many names an error lists.
const shown = 20

// known names what there is of a section.
func (c *checker) known(section string) string {
	var names []string
	switch section {
	case "hosts":
		for _, h := range c.lab.Hosts {
			names = append(names, h.Name)
		}
	case "tenants":
		for _, t := range c.lab.Tenants {
			names = append(names, t.Name)
		}
	case "machines":
		for _, m := range c.lab.Machines {
			if m.Service == "" {
				names = append(names, m.Name)
			}
		}
	}
	if len(names) == 0 {
		return "add " + section + " first; the file has none"
	}
	return "write one of " + List(names)
}

// List lists names for an error, if there are many the first of them.
func List(names []string) string {
	if len(names) > shown {
		names = append(slices.Clone(names[:shown]), "…")
	}
	return strings.Join(names, ", ")
}

// has reports whether the subnet has n addresses for machines.
func (t Tenant) has(n int) bool {
	bits := t.Subnet.Addr().BitLen() - t.Subnet.Bits()
	return bits > 16 || n <= 1<<bits-2
}

// usable reports whether a machine can have an address: one of the subnet that is neither its first
// nor, with IPv4, its last.
func (t Tenant) usable(a netip.Addr) bool {
	p := t.Subnet
	return p.Contains(a) && a != p.Addr() && (a.Is6() || p.Contains(a.Next()))
}

// Free returns the first address for a machine that is not taken.
func (t Tenant) Free(taken func(netip.Addr) bool) netip.Addr {
	a := t.Subnet.Addr().Next()
	for taken(a) && t.usable(a.Next()) {
		a = a.Next()
	}
	return a
}

package labfile

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/docs"
)

// Lab is the content of a lab's file.
type Lab struct {
	Name      string    `yaml:"name"`
	Directory string    `yaml:"directory"` // where NICs have their peers from: DirectoryStatic (default) or DirectoryEtcd
	Defaults  Defaults  `yaml:"defaults"`
	Hosts     []Host    `yaml:"hosts"`
	Links     []Link    `yaml:"links"`
	Tenants   []Tenant  `yaml:"tenants"`
	Machines  []Machine `yaml:"machines"`
	Validate  []Check   `yaml:"validate"`
}

// Directories of a lab.
const (
	DirectoryStatic = "static" // each NIC's configuration lists its peers
	DirectoryEtcd   = "etcd"   // the hosts are a fleet; their etcd goes by this name, as hosts do by theirs
)

// Defaults is what all hosts have in common.
type Defaults struct {
	Config yaml.Node `yaml:"config"`
	Uplink string    `yaml:"uplink"`
}

// Host is a host with one NIC.
type Host struct {
	Name   string    `entry:"name"`
	Config yaml.Node `yaml:"config"` // sections of the NIC's configuration, beside those that the lab writes
	Uplink string    `yaml:"uplink"` // config.UplinkTAP (default) or config.UplinkUDP
}

// Link joins the NICs of its endpoints: by a cable between two, by a switch between more. Each host is
// at one link.
type Link struct {
	Name      string   `yaml:"name"` // default: the endpoints, joined by -
	Endpoints []string `yaml:"endpoints"`
	MTU       int      `yaml:"mtu"`
	config.Impairment
	Ends []End `yaml:"ends"`
}

// End is an end of a link that impairs what it sends in another way than the others do.
type End struct {
	Host string `entry:"name"`
	config.Impairment
}

// Tenant is a virtual network.
type Tenant struct {
	Name   string       `entry:"name"`
	Subnet netip.Prefix `yaml:"subnet"`
}

// Machine is what a tenant has at a host: a network namespace with a function's port, or a guest.
type Machine struct {
	Name      string     `entry:"name"`
	Host      string     `yaml:"host"`
	Tenant    string     `yaml:"tenant"`
	Address   netip.Addr `yaml:"address"`   // default: the next one that is free
	Exec      []string   `yaml:"exec"`      // commands for a shell, run once the lab is up
	Guest     *Guest     `yaml:"guest"`     // a QEMU guest in place of a namespace
	Transport string     `yaml:"transport"` // of its function, as in a NIC's configuration; default: that of the NIC
	Service   string     `yaml:"service"`   // what the NIC itself does as this machine, in place of a namespace
}

// InNamespace reports whether the machine is a network namespace.
func (m *Machine) InNamespace() bool { return m.Guest == nil && m.Service == "" }

// Guest is a QEMU guest.
type Guest struct {
	Image    string      `yaml:"image"`    // folder made by vnic image; default: the lab makes one
	Packages []string    `yaml:"packages"` // Debian packages in the one that the lab makes
	Modules  []string    `yaml:"modules"`  // of the kernel, loaded at boot
	Driver   string      `yaml:"driver"`   // folder of the Linux driver, which is then in it
	Kernel   string      `yaml:"kernel"`   // folder of an unpacked kernel, or KernelDebug
	Disk     string      `yaml:"disk"`     // boots from an overlay of this disk, in place of an image
	Memory   config.Size `yaml:"memory"`
	CPUs     int         `yaml:"cpus"`
	Accel    string      `yaml:"accel"`
	QEMU     string      `yaml:"qemu"` // QEMU's program
	Port     string      `yaml:"port"`
	Function string      `yaml:"function"`
	IOMMU    bool        `yaml:"iommu"` // it has an IOMMU; with FunctionPCI it always has
	Share    string      `yaml:"share"` // folder of the host that the guest has as /share
}

// KernelDebug is the kernel that finds fault with drivers (guestlib/linux/debug-kernel.sh).
const KernelDebug = "debug"

// Ways by which a guest has its function's port, and its function.
const (
	PortVhostUser  = "vhost-user" // the NIC serves a virtio-net device in the guest's memory
	PortTAP        = "tap"        // QEMU's device on a TAP, bridged to the NIC's
	FunctionVsock  = "vsock"      // programs attach over vsock
	FunctionWindow = "window"     // a PCI device for its doorbells beside that, for the Linux driver, too
	FunctionPCI    = "vfio-user"  // a PCI device, by QEMU 10.1 or newer
)

// Check is a command with what is expected of it.
type Check struct {
	Name    string        `yaml:"name"`    // default: the command
	Run     []string      `yaml:"run"`     // where, and the command
	With    []string      `yaml:"with"`    // where and what runs beside it, as a server, and is ended after it
	Fails   bool          `yaml:"fails"`   // it must not succeed
	Output  string        `yaml:"output"`  // a regular expression that its output must match
	Wait    time.Duration `yaml:"wait"`    // run it again until it passes, at most this long
	Timeout time.Duration `yaml:"timeout"` // of one run
}

// Matches reports whether an output is as expected. ^ and $ stand for the begin and end of a line.
func (c *Check) Matches(output string) (bool, error) {
	re, err := regexp.Compile(c.Output)
	if err != nil {
		return false, err
	}
	return regexp.MustCompile("(?m:" + re.String() + ")").MatchString(output), nil
}

// Values of what a file leaves out.
const (
	DefaultMTU     = 9000
	DefaultTimeout = time.Minute
	defaultTenant  = "lab"
	defaultSubnet  = "192.168.100.0/24"
)

// maxFile is the largest size of a file.
const maxFile = 1 << 20

// Load reads and checks a lab: that of a file, or a shipped one by its name. changes, in the file's words,
// take the place of what the file says. text is what it read, with them.
func Load(arg string, changes ...string) (lab *Lab, text []byte, err error) {
	if !strings.ContainsAny(arg, "./") {
		text, err = docs.Labs.ReadFile("labs/" + arg + ".yaml")
		if err != nil {
			return nil, nil, fmt.Errorf("there is no lab %q; give the path of a file (./%[1]s.yaml), or one of %s", arg, strings.Join(Shipped(), ", "))
		}
	} else if text, err = read(arg); err != nil {
		return nil, nil, fmt.Errorf("lab: %w; give the path of a file, or one of %s", err, strings.Join(Shipped(), ", "))
	}
	if text, err = Change(text, changes...); err == nil {
		lab, err = Parse(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lab %s:\n%w", arg, err)
	}
	return lab, text, nil
}

// Change returns a lab's text with changes in the file's words, each a group of keys: values take the
// place of those that are there.
func Change(text []byte, changes ...string) ([]byte, error) {
	if len(changes) == 0 {
		return text, nil
	}
	if _, err := Parse(text); err != nil { // its lines are still those that the user wrote
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	for _, c := range changes {
		var change yaml.Node
		if err := yaml.Unmarshal([]byte(c), &change); err != nil {
			return nil, err
		}
		Merge(doc.Content[0], change.Content[0])
	}
	writeNulls(&doc)
	return yaml.Marshal(&doc)
}

// writeNulls gives a word to keys without a value, which yaml.Marshal writes as empty strings.
func writeNulls(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		n.Value = "null"
	}
	for _, c := range n.Content {
		writeNulls(c)
	}
}

// Merge sets the keys of a group from another one, and those of groups within it.
func Merge(to, from *yaml.Node) {
	for i := 0; i+1 < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		at := -1
		for j := 0; j+1 < len(to.Content); j += 2 {
			if to.Content[j].Value == key.Value {
				at = j + 1
			}
		}
		switch {
		case at < 0:
			to.Content = append(to.Content, key, value)
		case to.Content[at].Kind == yaml.MappingNode && value.Kind == yaml.MappingNode:
			Merge(to.Content[at], value)
		default:
			to.Content[at] = value
		}
	}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1)) // config.Decode refuses what is larger
}

// Shipped returns the names of the labs that come with the program.
func Shipped() (names []string) {
	files, _ := fs.Glob(docs.Labs, "labs/*.yaml")
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return names
}

// Parse reads and checks a lab, and sets what the file leaves out.
func Parse(text []byte) (*Lab, error) {
	l := &Lab{}
	if err := config.Decode(text, l, func(add func(path, what, remedy string)) {
		l.setDefaults()
		c := checker{lab: l, add: add}
		c.checkLab()
	}); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Lab) setDefaults() {
	l.Directory = cmp.Or(l.Directory, DirectoryStatic)
	for i := range l.Hosts {
		l.Hosts[i].Uplink = cmp.Or(l.Hosts[i].Uplink, l.Defaults.Uplink, config.UplinkTAP)
	}
	if len(l.Links) == 0 && len(l.Hosts) > 0 {
		all := Link{Name: "all"}
		for _, h := range l.Hosts {
			all.Endpoints = append(all.Endpoints, h.Name)
		}
		l.Links = []Link{all}
	}
	for i := range l.Links {
		k := &l.Links[i]
		if k.Name == "" {
			k.Name = strings.Join(k.Endpoints, "-")
		}
		if k.MTU == 0 {
			k.MTU = DefaultMTU
		}
		k.Impairment.SetDefaults()
		for j := range k.Ends {
			k.Ends[j].Impairment.SetDefaults()
		}
	}
	if len(l.Tenants) == 0 {
		l.Tenants = []Tenant{{Name: defaultTenant, Subnet: netip.MustParsePrefix(defaultSubnet)}}
	}
	for i := range l.Machines {
		m := &l.Machines[i]
		if m.Tenant == "" && len(l.Tenants) == 1 {
			m.Tenant = l.Tenants[0].Name
		}
		if m.Guest != nil {
			m.Guest.setDefaults()
		}
	}
	for i := range l.Validate {
		v := &l.Validate[i]
		if v.Name == "" {
			v.Name = strings.Join(v.Run, " ")
		}
		if v.Timeout == 0 {
			v.Timeout = DefaultTimeout
		}
	}
}

func (g *Guest) setDefaults() {
	g.Memory = cmp.Or(g.Memory, 512<<20)
	g.CPUs = cmp.Or(g.CPUs, 1)
	g.Accel = cmp.Or(g.Accel, "auto")
	g.QEMU = cmp.Or(g.QEMU, "qemu-system-x86_64")
	g.Port = cmp.Or(g.Port, PortVhostUser)
	if g.Function == "" {
		g.Function = FunctionVsock
		if g.Driver != "" {
			g.Function = FunctionWindow // the driver knows no vsock
		}
	}
}

// At returns the guest with its paths, which are those of a file in a folder.
func (g Guest) At(folder string) *Guest {
	for _, p := range []*string{&g.Image, &g.Driver, &g.Share, &g.Kernel, &g.Disk} {
		if *p != "" && !filepath.IsAbs(*p) && (p != &g.Kernel || *p != KernelDebug) {
			*p = filepath.Join(folder, *p)
		}
	}
	return &g
}

// LinkOf returns the link that a host is at.
func (l *Lab) LinkOf(host string) *Link {
	i := slices.IndexFunc(l.Links, func(k Link) bool { return slices.Contains(k.Endpoints, host) })
	if i < 0 {
		return nil
	}
	return &l.Links[i]
}

// Sends returns how what a host sends on the link is impaired.
func (k *Link) Sends(host string) config.Impairment {
	for _, e := range k.Ends {
		if e.Host == host {
			return e.Impairment
		}
	}
	return k.Impairment
}

// Tenant returns the tenant with a name that the file has.
func (l *Lab) Tenant(name string) Tenant {
	return l.Tenants[slices.IndexFunc(l.Tenants, func(t Tenant) bool { return t.Name == name })]
}

// MachinesOf returns the machines at a host.
func (l *Lab) MachinesOf(host string) (ms []Machine) {
	for _, m := range l.Machines {
		if m.Host == host {
			ms = append(ms, m)
		}
	}
	return ms
}

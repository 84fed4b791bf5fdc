package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	yaml "go.yaml.in/yaml/v4"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/config"
)

// plan says what to make for a lab's file: all numbers, addresses and texts. It is made without asking
// the machine.
type plan struct {
	*labfile.Lab
	state *state
	hosts []*host
	etcd  *etcd // nil: the hosts are no fleet
}

// host is a host as it is to be.
type host struct {
	Name     string
	Lab      string
	Number   int    // in the lab: addresses are made of it
	Uplink   string // its type
	Bridge   string // of its link, in the lab's own namespace
	Link     *labfile.Link
	Machines []*machine
	Peers    []*peer
	Impair   string // of the uplink, as YAML; "": none
	Etcd     *etcd  // that its peers come from; nil: the configuration lists them
	text     string // the NIC's configuration
}

// machine is a machine as it is to be.
type machine struct {
	labfile.Machine
	Lab          string
	VF           int
	TenantNumber int
	Subnet       netip.Prefix
	Address      netip.Addr
	host         *host
}

// peer is another host at the same link, with machines of the same tenants.
type peer struct {
	*host
	SharedTenants  []int
	SharedMachines []*machine // of these tenants
}

// numbers are what the lab gives out to names. A name keeps its number as long as the file has it.
type numbers struct {
	Hosts     map[string]int        `json:"hosts"`
	Tenants   map[string]int        `json:"tenants"`
	VFs       map[string]int        `json:"vfs"`       // by machine, in use at its host
	Addresses map[string]netip.Addr `json:"addresses"` // by machine
	At        map[string]string     `json:"at"`        // machine → host and tenant for which these are
}

// give returns a number for each name: the one it had, else the first that is free.
func give(names []string, had map[string]int) map[string]int {
	given, taken := map[string]int{}, map[int]bool{}
	for _, name := range names {
		if n, ok := had[name]; ok && !taken[n] {
			given[name], taken[n] = n, true
		}
	}
	next := 1
	for _, name := range names {
		if given[name] != 0 {
			continue
		}
		for taken[next] {
			next++
		}
		given[name], taken[next] = next, true
	}
	return given
}

// number gives out all numbers and addresses.
func number(l *labfile.Lab, had numbers) (n numbers) {
	var hosts, tenants []string
	for _, h := range l.Hosts {
		hosts = append(hosts, h.Name)
	}
	for _, t := range l.Tenants {
		tenants = append(tenants, t.Name)
	}
	n = numbers{give(hosts, had.Hosts), give(tenants, had.Tenants), map[string]int{}, map[string]netip.Addr{}, map[string]string{}}
	for _, m := range l.Machines {
		n.At[m.Name] = m.Host + " " + m.Tenant
	}
	moved := func(name string) bool { return had.At[name] != n.At[name] }
	for _, h := range l.Hosts {
		var names []string
		old := map[string]int{}
		for _, m := range l.MachinesOf(h.Name) {
			names = append(names, m.Name)
			if v, ok := had.VFs[m.Name]; ok && !moved(m.Name) {
				old[m.Name] = v
			}
		}
		for name, v := range give(names, old) {
			n.VFs[name] = v
		}
	}
	type place struct {
		tenant  string
		address netip.Addr
	}
	taken := map[place]bool{}
	enter := func(m labfile.Machine, a netip.Addr) {
		n.Addresses[m.Name] = a
		taken[place{m.Tenant, a}] = true
	}
	for _, m := range l.Machines {
		if m.Address.IsValid() {
			enter(m, m.Address)
		}
	}
	for _, m := range l.Machines {
		old, ok := had.Addresses[m.Name]
		if !m.Address.IsValid() && ok && !moved(m.Name) && l.Tenant(m.Tenant).Subnet.Contains(old) && !taken[place{m.Tenant, old}] {
			enter(m, old)
		}
	}
	for _, m := range l.Machines {
		if !n.Addresses[m.Name].IsValid() {
			enter(m, l.Tenant(m.Tenant).Free(func(a netip.Addr) bool { return taken[place{m.Tenant, a}] }))
		}
	}
	return n
}

// newPlan works out a lab. Its error names what is wrong with the sections of NICs' configurations that
// the file has.
func newPlan(l *labfile.Lab, had *state) (*plan, error) {
	p := &plan{Lab: l, state: &state{Source: had.Source, Folder: had.Folder, Numbers: number(l, had.Numbers), Made: had.Made, Begun: had.Begun, Links: had.Links}}
	if l.Directory == labfile.DirectoryEtcd {
		p.etcd = &etcd{l}
	}
	n := &p.state.Numbers
	for _, f := range l.Hosts {
		k := l.LinkOf(f.Name)
		h := &host{
			Name: f.Name, Lab: l.Name, Number: n.Hosts[f.Name], Uplink: f.Uplink, Link: k, Etcd: p.etcd,
			Bridge: fmt.Sprintf("sw%d", slices.IndexFunc(l.Links, func(o labfile.Link) bool { return o.Name == k.Name })),
		}
		h.Impair = impairment(p.sends(h), h.Number)
		for _, m := range l.MachinesOf(f.Name) {
			if m.Guest != nil {
				m.Guest = m.Guest.At(had.Folder)
			}
			h.Machines = append(h.Machines, &machine{
				Machine: m, Lab: l.Name, VF: n.VFs[m.Name], TenantNumber: n.Tenants[m.Tenant], Subnet: l.Tenant(m.Tenant).Subnet, Address: n.Addresses[m.Name], host: h,
			})
		}
		slices.SortFunc(h.Machines, func(a, b *machine) int { return a.VF - b.VF })
		p.hosts = append(p.hosts, h)
	}
	var problems []error
	for i, h := range p.hosts {
		for _, o := range p.hosts {
			if o != h && o.Link == h.Link {
				h.addPeer(o)
			}
		}
		if err := h.write(&l.Defaults.Config, &l.Hosts[i].Config); err != nil {
			problems = append(problems, err)
		}
	}
	return p, errors.Join(problems...)
}

// addPeer makes another host a peer if both have machines of a tenant.
func (h *host) addPeer(o *host) {
	p := &peer{host: o}
	for _, m := range o.Machines {
		if !slices.ContainsFunc(h.Machines, func(own *machine) bool { return own.TenantNumber == m.TenantNumber }) {
			continue
		}
		p.SharedMachines = append(p.SharedMachines, m)
		if !slices.Contains(p.SharedTenants, m.TenantNumber) {
			p.SharedTenants = append(p.SharedTenants, m.TenantNumber)
		}
	}
	if len(p.SharedTenants) > 0 {
		h.Peers = append(h.Peers, p)
	}
}

// Files and addresses of a host and its machines.

func (h *host) Config() string   { return filepath.Join(folder(h.Lab), h.Name+".yaml") }
func (h *host) Log() string      { return filepath.Join(folder(h.Lab), h.Name+".log") }
func (h *host) Control() string  { return filepath.Join(folder(h.Lab), h.Name+".sock") }
func (h *host) Underlay() string { return fmt.Sprintf("10.99.%d.%d", h.Number>>8, h.Number&0xff) } // the NIC's

func (h *host) KernelAddress() string { return fmt.Sprintf("172.16.%d.%d", h.Number>>8, h.Number&0xff) } // on br0

// Keys returns the folder with the host's identity.
func (h *host) Keys() string {
	if h.Etcd != nil {
		return h.Etcd.Keys(h.Name)
	}
	return filepath.Join(folder(h.Lab), "keys")
}

// ID returns the host number of the NIC, from 1 to 255. NICs of different hosts may have the same one: they
// are told apart by their names.
func (h *host) ID() int       { return (h.Number-1)%255 + 1 }
func (h *host) CM() string    { return h.KernelAddress() + ":7471" }
func (h *host) Space() string { return space(h.Lab, h.Name) }

// Attached lists the machines whose programs or guests attach to the NIC.
func (h *host) Attached() []*machine {
	return slices.DeleteFunc(slices.Clone(h.Machines), func(m *machine) bool { return m.Service != "" })
}

// Tenants lists the tenants of the host's machines, each once, with its subnet.
func (h *host) Tenants() (ms []*machine) {
	for _, m := range h.Machines {
		if !slices.ContainsFunc(ms, func(o *machine) bool { return o.TenantNumber == m.TenantNumber }) {
			ms = append(ms, m)
		}
	}
	return ms
}

func (m *machine) Space() string             { return space(m.Lab, m.Name) }
func (m *machine) File(suffix string) string { return filepath.Join(folder(m.Lab), m.Name+suffix) }
func (m *machine) Socket() string            { return m.File(".sock") }

// Prefix returns the machine's address with the prefix length of its subnet.
func (m *machine) Prefix() string { return netip.PrefixFrom(m.Address, m.Subnet.Bits()).String() }

// all lists the machines.
func (p *plan) all() (ms []*machine) {
	for _, h := range p.hosts {
		ms = append(ms, h.Machines...)
	}
	return ms
}

// machine returns the machine with a name, or nil.
func (p *plan) machine(name string) *machine {
	for _, m := range p.all() {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// host returns the host with a name, or nil.
func (p *plan) host(name string) *host {
	for _, h := range p.hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

var configuration = template.Must(template.New("").Parse(`# The NIC of host {{.Name}} in lab {{.Lab}}. vnic lab writes this file; vnic run -c reads it.
nic: {host: {{.ID}}, name: {{.Name}}}
control: {{.Control}}
uplink:
{{- if eq .Uplink "udp"}}
  type: udp
  listen: {{.Underlay}}:1000
{{- else}}
  name: up0
  bridge: br0
  address: {{.Underlay}}/16
{{- end}}
  mtu: {{.Link.MTU}}
{{- with .Impair}}
  impair: {{.}}
{{- end}}
cm: {listen: "{{.CM}}", identity: {{.Keys}}, name: {{.Name}}}
{{- if .Etcd}}
directory: {etcd: {endpoints: ["{{.Etcd.URL}}"], prefix: {{.Etcd.Prefix}}}}
{{- else if .Peers}}
peers:
{{- range .Peers}}
  - name: {{.Name}}
    underlay: {{.Underlay}}
    cm: {{.CM}}
    tenants: [{{range $i, $t := .SharedTenants}}{{if $i}}, {{end}}{{$t}}{{end}}]
    functions:
{{- range .SharedMachines}}
      - {tenant: {{.TenantNumber}}, address: "{{.Address}}"} # {{.Name}}
{{- end}}
{{- end}}
{{- end}}
{{- if .Machines}}
tenants:
{{- range .Tenants}}
  - {tenant: {{.TenantNumber}}, subnets: ["{{.Subnet}}"]} # {{.Tenant}}
{{- end}}
{{- end}}
functions:
  - pf: 0
{{- if .Machines}}
    vfs:
{{- range .Machines}}
      - vf: {{.VF}} # {{.Name}}
        tenant: {{.TenantNumber}}
        address: "{{.Address}}"
{{- with .Transport}}
        transport: {{.}}
{{- end}}
{{- if .Service}}
        service: {{.Service}}
{{- else if not .Guest}}
        guest: {unix: {{.Name}}}
        port: {mode: direct, name: {{.Name}}, netns: {{.Space}}, persist: true}
{{- else}}
        guest: {cid: {{.CID}}}
{{- if eq .Guest.Port "tap"}}
        port: {mode: bridged, name: {{.PortTAP}}, bridge: {{.PortBridge}}}
{{- else}}
        port: {type: vhost-user, socket: {{.File ".port"}}}
{{- end}}
{{- end}}
{{- end}}
{{- with .Attached}}
attach:
{{- range .}}
{{- if not .Guest}}
  - {type: unix, name: {{.Name}}, socket: {{.Socket}}}
{{- else if eq .Guest.Function "vfio-user"}}
  - {type: vfio-user, socket: {{.Socket}}, cid: {{.CID}}} # {{.Name}}
  - {type: vhost-user, socket: {{.Agent}}, cid: {{.AgentCID}}, vsock: {{.File ".vsock"}}}
{{- else}}
  - {type: vhost-user, socket: {{.Socket}}, cid: {{.CID}}, vsock: {{.File ".vsock"}}{{if eq .Guest.Function "window"}}, windows: true{{end}}} # {{.Name}}
{{- end}}
{{- end}}
{{- end}}
{{- end}}
`))

// impairment writes how a host's uplink is impaired, as YAML. Only what it sends is impaired, since the
// other end impairs what arrives; a cable that is cut is so in both directions. Each host has a seed of its
// own, so that the ends do not drop the same packets.
func impairment(i config.Impairment, host int) string {
	if !i.On() {
		return ""
	}
	text := impairWords(i)
	text = append(text, fmt.Sprintf("seed: %d", i.Seed+uint64(host)))
	if i.Down {
		return fmt.Sprintf("{tx: {%s}, rx: {down: true}}", strings.Join(text, ", "))
	}
	return fmt.Sprintf("{tx: {%s}}", strings.Join(text, ", "))
}

// impairWords describes an impairment in the words of the file.
func impairWords(i config.Impairment) (words []string) {
	none := config.NoImpairment()
	put := func(key string, value any, given bool) {
		if given {
			words = append(words, fmt.Sprintf("%s: %v", key, value))
		}
	}
	put("delay", i.Delay, i.Delay != 0)
	put("jitter", i.Jitter, i.Jitter != 0)
	put("loss", i.Loss, i.Loss != 0)
	put("reorder", i.Reorder, i.Reorder != 0)
	put("reorder_delay", i.ReorderDelay, i.ReorderDelay != none.ReorderDelay)
	put("rate", i.Rate, i.Rate != 0)
	put("queue", i.Queue, i.Queue != none.Queue)
	put("duplicate", i.Duplicate, i.Duplicate != 0)
	put("corrupt", i.Corrupt, i.Corrupt != 0)
	put("mark", i.Mark, i.Mark != 0)
	put("down", true, i.Down)
	return words
}

// write writes the NIC's configuration, with the file's sections for all hosts and for this one, and
// checks it as vnic run does.
func (h *host) write(sections ...*yaml.Node) error {
	var b bytes.Buffer
	if err := configuration.Execute(&b, h); err != nil {
		return err
	}
	text := b.Bytes()
	for _, s := range sections {
		if s.Kind != yaml.MappingNode {
			continue
		}
		var doc yaml.Node
		if err := yaml.Unmarshal(text, &doc); err != nil {
			return err
		}
		labfile.Merge(doc.Content[0], s)
		merged, err := yaml.Marshal(&doc)
		if err != nil {
			return err
		}
		text = merged
	}
	h.text = string(text)
	_, err := config.Parse(text)
	var problems config.Problems
	if !errors.As(err, &problems) {
		return err
	}
	var lines []error
	for _, p := range problems {
		p.Line, p.Path = 0, "hosts."+h.Name+".config."+p.Path // its line is that of the text above
		lines = append(lines, errors.New(p.String()))
	}
	return errors.Join(lines...)
}

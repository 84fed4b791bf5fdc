package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func (c *Config) checkFunctions(r *report) {
	pfs := map[uint8]int{}
	taken := c.Taken()
	for i := range c.Functions {
		pf, path := &c.Functions[i], fmt.Sprintf("functions[%d]", i)
		if pf.PF > maxPF {
			r.add(path+".pf", fmt.Sprintf("%d is out of range", pf.PF), fmt.Sprintf("use 0 to %d", maxPF))
		} else if first, dup := pfs[pf.PF]; dup {
			r.add(path+".pf", fmt.Sprintf("%d is already described in functions[%d]", pf.PF, first), "describe each PF once")
		} else {
			pfs[pf.PF] = i
		}
		if pf.VFCount < 0 || pf.VFCount > maxVF {
			r.add(path+".vf_count", fmt.Sprintf("%d is out of range", pf.VFCount), fmt.Sprintf("use 0 to %d", maxVF))
		}
		c.checkFunction(r, path, &pf.Function, taken)
		taken.Put(path, &pf.Function)
		vfs := map[uint16]int{}
		for j := range pf.VFs {
			vf, p := &pf.VFs[j], fmt.Sprintf("%s.vfs[%d]", path, j)
			if vf.VF == 0 || vf.VF > maxVF {
				r.add(p+".vf", fmt.Sprintf("%d is out of range", vf.VF), fmt.Sprintf("use 1 to %d; the PF itself is number 0", maxVF))
			} else if first, dup := vfs[vf.VF]; dup {
				r.add(p+".vf", fmt.Sprintf("%d is already described in vfs[%d]", vf.VF, first), "describe each VF once")
			} else {
				vfs[vf.VF] = j
				if int(vf.VF) > pf.VFCount {
					r.add(p+".vf", fmt.Sprintf("%d is above vf_count, %d", vf.VF, pf.VFCount), "raise vf_count or use a lower number")
				}
			}
			c.checkFunction(r, p, &vf.Function, taken)
			taken.Put(p, &vf.Function)
		}
	}
}

// checkFunction checks a function that is described at path, which is also its name in taken.
func (c *Config) checkFunction(r *report, path string, f *Function, taken *Taken) {
	if f.Tenant == 0 && (f.Address.IsValid() || f.Guest != nil) {
		r.add(path+".tenant", "missing or 0", "name the tenant, 1 or above, that the function belongs to")
	}
	switch {
	case f.Address.IsValid() && !usable(f.Address):
		r.add(path+".address", fmt.Sprintf("%s cannot be a function's address", f.Address), "write it as 192.168.100.11")
	case !f.Address.IsValid() && (f.Tenant != 0 || f.Guest != nil):
		r.add(path+".address", "missing", "write the function's address in its tenant, as 192.168.100.11")
	case f.Address.IsValid():
		if other, dup := by(taken.addresses, tenantAddr{f.Tenant, f.Address}, path); dup {
			r.inUse(path+".address", fmt.Sprintf("%s in tenant %d is already used by %s", f.Address, f.Tenant, other), "give each function of a tenant its own address")
		}
	}
	if other, dup := by(taken.macs, f.MAC, path); dup {
		r.inUse(path+".mac", fmt.Sprintf("%s is already used by %s", r.value(path+".mac", f.MAC), other), "give each function a MAC of its own")
	}
	if f.Transport != "" {
		checkTransport(r, path+".transport", f.Transport)
	}
	c.checkGuest(r, path+".guest", f.Guest)
	checkService(r, path, f)
	checkWindow(r, path+".dma_window", f.DMAWindow)
	checkLimits(r, path+".limits", &f.Limits)
	c.checkPort(r, path, f, taken)
	c.checkLeast(r, path+".credits", &f.Credits, 1)
	checkGuarantee(r, path, f)
	if *f.Enabled && f.Tenant == 0 {
		r.add(path+".enabled", "true, but the function has no tenant", "give it tenant and address, or leave enabled out")
	}
}

// CheckFunction checks a function that is changed while the NIC runs, and returns the first
// problem. name is its name in the error and in taken.
func (c *Config) CheckFunction(name string, f *Function, taken *Taken) error {
	r := &report{}
	c.checkFunction(r, name, f, taken)
	if len(r.problems) > 0 {
		return r.problems[:1]
	}
	return nil
}

func checkGuarantee(r *report, path string, f *Function) {
	limit, guarantee := f.Credits.each(), f.Guarantee.each()
	for i, g := range guarantee {
		if *g.value > *limit[i].value {
			r.add(path+".guarantee."+g.key, fmt.Sprintf("%d is more than the %d that credits.%s allows it", *g.value, *limit[i].value, g.key), "lower it or raise the limit")
		}
	}
}

// checkLeast checks that a limit allows at least one packet for each of its sharers: the shards of
// the NIC for credits.nic and credits.host, else 1.
func (c *Config) checkLeast(r *report, path string, limit *Credits, sharers int) {
	least := c.leastCredits()
	for i, n := range limit.each() {
		value, key := *n.value, path+"."+n.key
		if r.zeros[key] {
			value = 0 // the file says 0, and the default replaced it
		} else if value == 0 {
			continue // no limit
		}
		switch l := *least.each()[i].value; {
		case value < l:
			r.add(key, fmt.Sprintf("%s is less than one packet of %d bytes needs, so work would wait forever", r.value(key, value), c.RDMA.MTU), fmt.Sprintf("use %d or more, or leave it out", l))
		case uint64(value) < uint64(l)*uint64(sharers):
			r.add(key, fmt.Sprintf("%s is less than one packet of %d bytes needs on each of %d shards", r.value(key, value), c.RDMA.MTU, sharers), fmt.Sprintf("use %d or more, lower nic.shards, or leave it out", l*uint32(sharers)))
		}
	}
}

// checkCredits checks that a packet can be sent at every level, and that all guarantees can be kept
// at the same time.
func (c *Config) checkCredits(r *report) {
	shards := min(max(c.NIC.Shards, 1), MaxShards) // an invalid number is reported elsewhere
	c.checkLeast(r, "credits.nic", &c.Credits.NIC, shards)
	c.checkLeast(r, "credits.host", &c.Credits.Host, shards)
	c.checkLeast(r, "credits.connection", &c.Credits.Connection, 1)
	host, nic := c.Credits.Host.each(), c.Credits.NIC.each()
	for i, h := range host {
		if *h.value > *nic[i].value {
			r.add("credits.host."+h.key, fmt.Sprintf("%d is more than the NIC has, %d", *h.value, *nic[i].value), "lower it or raise credits.nic."+h.key)
		}
	}
	var guarantees []Credits
	for _, f := range c.AllFunctions() {
		if *f.Enabled {
			guarantees = append(guarantees, f.Guarantee)
		}
	}
	for _, s := range c.shortages(guarantees) {
		r.add("credits.host."+s.key, s.problem, s.remedy)
	}
}

// shortage is a counter of credits.host of which the guarantees take too much.
type shortage struct{ key, problem, remedy string }

// shortages returns the counters of which the guarantees of all enabled functions cannot be kept at
// the same time, or leave less than one packet to the function with the least guarantee.
func (c *Config) shortages(guarantees []Credits) (list []shortage) {
	least := c.leastCredits()
	for i, h := range c.Credits.Host.each() {
		var sum, poorest uint64 = 0, math.MaxUint64
		for j := range guarantees {
			g := uint64(*guarantees[j].each()[i].value)
			sum, poorest = sum+g, min(poorest, g)
		}
		has, need := uint64(*h.value), uint64(*least.each()[i].value)
		switch {
		case sum > has:
			list = append(list, shortage{h.key, fmt.Sprintf("%d are guaranteed to functions, but there are only %d", sum, has), "raise it or lower the functions' guarantee." + h.key})
		case poorest < need && has-sum+poorest < need:
			list = append(list, shortage{
				h.key, fmt.Sprintf("guarantees leave %d of %d to a function that has none", has-sum, has),
				fmt.Sprintf("a packet needs %d: raise it, or lower the functions' guarantee.%s", need, h.key),
			})
		}
	}
	return list
}

// CheckGuarantees returns an error unless credits.host is enough for the guarantees of all enabled
// functions, and for one packet of each function.
func (c *Config) CheckGuarantees(guarantees []Credits) error {
	for _, s := range c.shortages(guarantees) {
		return fmt.Errorf("credits.host.%s: %s; %s", s.key, s.problem, s.remedy)
	}
	return nil
}

func (c *Config) checkGuest(r *report, path string, g *Guest) {
	if g == nil {
		return
	}
	if (g.CID == 0) == (g.Unix == "") {
		r.add(path, "must name either cid or unix", "write {cid: 3} or {unix: name}")
		return
	}
	for i := range c.Attach {
		a := &c.Attach[i]
		switch {
		case g.Unix != "" && a.Type == AttachUnix && a.Name == g.Unix,
			g.CID != 0 && (a.Type == AttachVhostUser || a.Type == AttachVfioUser) && a.CID == g.CID,
			g.CID != 0 && a.Type == AttachVsock:
			return
		}
	}
	if g.Unix != "" {
		r.add(path+".unix", fmt.Sprintf("no unix attachment is named %q", g.Unix), "add {type: unix, name: "+g.Unix+", socket: …} under attach")
	} else {
		r.add(path+".cid", fmt.Sprintf("nothing under attach serves guest %d", g.CID), fmt.Sprintf("add {type: vhost-user, cid: %d, socket: …} under attach", g.CID))
	}
}

func checkService(r *report, path string, f *Function) {
	switch {
	case f.Service == "":
	case f.Service != ServiceEcho && f.Service != ServiceMemory && f.Service != ServicePattern:
		r.add(path+".service", fmt.Sprintf("%q is not a service", f.Service), "write echo, memory or pattern")
	case f.Guest != nil:
		r.add(path+".service", "the function also has a guest", "leave out guest or service")
	case !f.Address.IsValid():
		r.add(path+".service", "the function has no address", "give it a tenant and an address to which others connect")
	}
}

func checkWindow(r *report, path string, w *Window) {
	switch {
	case w == nil:
	case w.Size == 0 || w.Size%abi.PageSize != 0:
		r.add(path+".size", fmt.Sprintf("%s is not a number of pages", w.Size), "use a multiple of 4K; leave dma_window out for all of the guest's memory")
	case w.Address%abi.PageSize != 0:
		r.add(path+".address", fmt.Sprintf("%s is not the address of a page", w.Address), "use a multiple of 4K")
	}
}

func checkLimits(r *report, path string, l *Limits) {
	check := func(key string, value, most uint32) {
		if r.zeros[path+"."+key] {
			value = 0 // the file says 0, and the default replaced it
		}
		if value > most || r.zeros[path+"."+key] {
			r.add(path+"."+key, fmt.Sprintf("%d is out of range", value), fmt.Sprintf("use 1 to %d", most))
		}
	}
	for k := range abi.NumObjects {
		check(k.Info().Key, *l.Quotas.Of(k), k.Info().Most)
	}
	check("qp_entries", l.QPEntries, 1<<abi.MaxQueueLog2)
	check("cq_entries", l.CQEntries, 1<<abi.MaxQueueLog2)
	check("read_atomic", l.ReadAtomic, 128)
	if l.PageLists > 1<<30 {
		r.add(path+".page_lists", fmt.Sprintf("%d bytes are too much for one function", l.PageLists), "use at most 1G; 64M holds the page lists of 64 GiB")
	}
	for _, c := range []struct {
		key   string
		value uint32
	}{{"qp_entries", l.QPEntries}, {"cq_entries", l.CQEntries}} {
		if c.value&(c.value-1) != 0 {
			r.add(path+"."+c.key, fmt.Sprintf("%d is not a power of two", c.value), "use a power of two")
		}
	}
}

// CheckPeers checks a list of peers in place of the configuration's, and returns the first problem.
func (c *Config) CheckPeers(list []Peer) error {
	r, with := &report{}, *c
	with.Peers = list
	with.checkCM(r)
	with.checkPeers(r, func(i int) string { return "peer " + list[i].Name })
	if len(r.problems) > 0 {
		return r.problems[:1]
	}
	return nil
}

// checkPeers checks the peers; place returns the name of each in errors.
func (c *Config) checkPeers(r *report, place func(i int) string) {
	names, underlays := map[string]int{}, map[Place]int{}
	carriers := map[uint32][]int{}
	owners := map[tenantAddr]string{}
	for i := range c.Peers {
		p, path := &c.Peers[i], place(i)
		if p.Name == "" {
			r.add(path+".name", "missing", "write the peer's cm.name, which is in its certificate")
		} else if err := cmlink.CheckName(p.Name); err != nil {
			r.add(path+".name", err.Error(), "write the peer's cm.name, which is in its certificate")
		} else if p.Name == c.CM.Name {
			r.add(path, fmt.Sprintf("NIC %s is this NIC itself (cm.name)", p.Name), "list only other NICs, each with a name of its own")
		} else if first, dup := names[p.Name]; dup {
			r.add(path, fmt.Sprintf("NIC %s is already described in %s", p.Name, place(first)), "describe each peer once")
		} else {
			names[p.Name] = i
		}
		if c.Uplink.checkPeer(r, path+".underlay", p.Underlay) {
			if first, dup := underlays[p.Underlay]; dup && !p.Underlay.Anywhere() {
				r.add(path+".underlay", fmt.Sprintf("%s is already used by %s", p.Underlay, place(first)), "give each NIC its own underlay address")
			} else {
				underlays[p.Underlay] = i
			}
		}
		if p.Identity == "" {
			// the name in this NIC's domain
		} else if _, name, err := cmlink.ParseURI(p.Identity); err != nil {
			r.add(path+".identity", fmt.Sprintf("%q is not an identity", p.Identity), fmt.Sprintf("write the URI in the peer's certificate, as vnic://lab/host/%s", cmp.Or(p.Name, "NAME")))
		} else if name != p.Name {
			r.add(path+".identity", fmt.Sprintf("%q is the identity of NIC %s, but the peer is %s", p.Identity, name, p.Name), "correct one of the two")
		}
		c.checkPeerTenants(r, path, p, owners)
		for _, t := range p.Tenants {
			carriers[t] = append(carriers[t], i)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(carriers)) {
		list := carriers[t]
		if len(list) < 2 {
			continue
		}
		for _, i := range list {
			if !c.Peers[i].lists(t) {
				r.add(place(i)+".functions", fmt.Sprintf("tenant %d is shared by %d peers and this one's functions in it are not listed", t, len(list)),
					fmt.Sprintf("list them, as {tenant: %d, address: 192.168.100.21}", t))
			}
		}
	}
}

func (c *Config) checkPeerTenants(r *report, path string, p *Peer, owners map[tenantAddr]string) {
	if len(p.Tenants) == 0 {
		r.add(path+".tenants", "missing", "list the tenants the peer may speak for, as [1]")
	}
	listed := map[uint32]bool{}
	for j, t := range p.Tenants {
		q := fmt.Sprintf("%s.tenants[%d]", path, j)
		if t == 0 {
			r.add(q, "0 is not a tenant", "use 1 or above")
		} else if listed[t] {
			r.add(q, fmt.Sprintf("%d is listed twice", t), "list it once")
		}
		listed[t] = true
	}
	for j, f := range p.Functions {
		q := fmt.Sprintf("%s.functions[%d]", path, j)
		if !listed[f.Tenant] {
			r.add(q+".tenant", fmt.Sprintf("%d is not among the peer's tenants", f.Tenant), "add it to tenants or correct it")
		}
		if !usable(f.Address) {
			r.add(q+".address", "missing or not a host's address", "write it as 192.168.100.21")
			continue
		}
		key := tenantAddr{f.Tenant, f.Address}
		if first, dup := owners[key]; dup {
			r.add(q+".address", fmt.Sprintf("%s in tenant %d is already used by %s", f.Address, f.Tenant, first), "an address of a tenant has one owner")
		} else {
			owners[key] = q
		}
	}
}

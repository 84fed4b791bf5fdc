package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
)

// check is one thing that can be wrong.
type check struct {
	name   string
	looks  string // at what, for the reference
	find   func(*seen) []wrong
	remedy string
}

// wrong is what a check found.
type wrong struct{ about, what string }

const (
	soon = 30 * 24 * time.Hour // when a certificate's end is near

	// clocksApart is more than a keepalive takes to a NIC that stood still, and less than cmlink.ClockSkew.
	clocksApart = 30 * time.Second

	minFiles  = 256      // descriptors that a NIC needs, besides
	filesEach = 32       // those of each function
	minLocked = 64 << 20 // bytes that programs with RDMA commonly lock
	usoMajor  = 6        // Linux with UDP segmentation on TAPs
	usoMinor  = 2
)

// checks is the table of all checks, in the order in which they look from the machine outwards.
var checks = []check{
	// The machine.
	{"tun", "/dev/net/tun", func(s *seen) []wrong {
		return s.machineIs(s.machine.tun != nil, "%v", s.machine.tun)
	}, "NICs make TAPs by it: modprobe tun, or give it to the container (docker run --device /dev/net/tun)"},
	{"uso", "whether a TAP carries superframes, or the kernel's version", func(s *seen) []wrong {
		return s.machineIs(s.machine.noUSO != "", "%s", s.machine.noUSO)
	}, "packets cross the kernel one by one, at about a tenth of the rate: use Linux 6.2 or newer"},
	{"kvm", "/dev/kvm", func(s *seen) []wrong {
		return s.machineIs(s.machine.kvm != nil, "%v: QEMU emulates guests' processors (TCG)", s.machine.kvm)
	}, "guests are about ten times slower; all of vnic works. Enable virtualization in the firmware, or nested in the hypervisor, and put the user into the group kvm"},
	{"br_netfilter", "bridge-nf-call-iptables", func(s *seen) []wrong {
		return s.machineIs(s.machine.bridgeFilter, "iptables sees what crosses bridges, and may drop it")
	}, "sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 net.bridge.bridge-nf-call-arptables=0, or let UDP port 1000 pass"},
	{"neighbours", "how full the kernel's tables of neighbours are, which all namespaces share", func(s *seen) []wrong {
		return s.machineIs(s.machine.neighbours != "", "%s", s.machine.neighbours)
	}, "when it is full, packets to further addresses are lost: raise it, as by sysctl -w net.ipv4.neigh.default.gc_thresh3=8192 net.ipv4.neigh.default.gc_thresh2=4096, and net.ipv6 alike"},
	{"clock", "whether something keeps the clock, and how far peers' clocks are from it", func(s *seen) []wrong {
		list := s.machineIs(s.machine.clockWrong && s.hasPeers(), "nothing keeps this machine's clock")
		return append(list, s.running(func(n *nic) (list []wrong) {
			for _, p := range n.is.Peers {
				ahead := time.Duration(p.ClockAheadMS) * time.Millisecond
				list = append(list, when(ahead > clocksApart, n.socket, "the clock of peer %s is %v ahead of this machine's", p.Identity, ahead.Round(time.Second))...)
				list = append(list, when(ahead < -clocksApart, n.socket, "the clock of peer %s is %v behind this machine's", p.Identity, -ahead.Round(time.Second))...)
			}
			return list
		})...)
	}, "peers check each other's certificates by their clocks: run chrony or systemd-timesyncd on every host"},
	{"memlock", "the limit of locked memory", func(s *seen) []wrong {
		m := &s.machine
		return s.machineIs(!m.root && m.locked < minLocked, "this user may lock %d KiB of memory", m.locked>>10)
	}, "programs that use RDMA lock their buffers: raise it (ulimit -l unlimited, or memlock in /etc/security/limits.conf)"},
	{"descriptors", "the limit of open files", func(s *seen) []wrong {
		return s.each(func(f *file) []wrong {
			need := uint64(minFiles + filesEach*len(f.cfg.AllFunctions()))
			return when(s.machine.files < need, f.path, "processes may open %d files, and a NIC with %d functions may need %d", s.machine.files, len(f.cfg.AllFunctions()), need)
		})
	}, "raise the hard limit: ulimit -Hn, or LimitNOFILE= in the unit"},

	// Configurations.
	{"configuration", "each configuration on its own", func(s *seen) (list []wrong) {
		for _, f := range s.files {
			if f.err != nil {
				list = append(list, wrong{f.path, strings.TrimPrefix(f.err.Error(), "configuration "+f.path+":\n")})
			}
		}
		return list
	}, "each line says what to write; docs/configuration.md has all keys"},
	{"machine", "what configurations name: bridges, namespaces, identities, folders, addresses", func(s *seen) []wrong {
		return s.each(func(f *file) []wrong { return when(f.lacks != nil, f.path, "%v", f.lacks) })
	}, "make what is missing, or name something else"},
	{
		"equal", "names and addresses of several configurations", func(s *seen) []wrong { return s.equal() },
		"give each NIC, function and socket its own",
	},
	{"psp.mode", "how NICs seal", func(s *seen) (list []wrong) {
		for i := range s.files {
			for j := range i {
				a, b := s.files[j].cfg, s.files[i].cfg
				if a != nil && b != nil {
					list = append(list, when(a.PSP.Mode != b.PSP.Mode, s.files[i].path, "psp.mode is %s, in %s it is %s", b.PSP.Mode, s.files[j].path, a.PSP.Mode)...)
				}
			}
		}
		return append(list, s.peers(func(p *control.Peer) bool { return strings.Contains(p.Note, "psp.mode") })...)
	}, "write the same psp.mode for all NICs"},
	{"certificate", "when certificates expire", func(s *seen) []wrong {
		list := s.each(func(f *file) []wrong {
			return when(!f.ends.IsZero() && f.ends.Before(s.now.Add(soon)), f.path, "its certificate, or the authority's, expires on %s", f.ends.Format(time.DateOnly))
		})
		return append(list, s.running(func(n *nic) []wrong {
			ends := time.Unix(int64(n.counters["cmlink.certificate_ends"]), 0)
			return when(n.counters["cmlink.certificate_ends"] != 0 && ends.Before(s.now.Add(soon)), n.socket, "the certificate that it uses, or the authority's, expires on %s", ends.Format(time.DateOnly))
		})...)
	}, "vnic keys renew for a host's and vnic reload; vnic keys authority when it is the authority's (vnic keys show)"},
	{"mtu", "MTUs on the way to peers", func(s *seen) []wrong {
		list := s.each(func(f *file) (list []wrong) {
			u := &f.cfg.Uplink
			for _, m := range f.bridges[u.Bridge] {
				list = append(list, when(m.MTU < u.MTU, f.path, "%s in bridge %s has an MTU of %d, uplink.mtu is %d", m.Name, u.Bridge, m.MTU, u.MTU)...)
			}
			return list
		})
		return append(list, s.running(func(n *nic) (list []wrong) {
			for _, u := range n.is.Uplinks {
				for _, p := range n.is.Peers {
					list = append(list, when(p.Up && p.PathMTU > 0 && p.PathMTU < u.MTU, n.socket, "the network carries packets of %d bytes to peer %s, uplink.mtu is %d", p.PathMTU, p.Identity, u.MTU)...)
				}
			}
			return list
		})...)
	}, "raise it on the way (ip link set DEV mtu …), or write that MTU into uplink.mtu of all NICs"},
	{"carrier", "what bridges connect", func(s *seen) []wrong {
		return s.each(func(f *file) (list []wrong) {
			for bridge, members := range f.bridges {
				others := 0
				for _, m := range members {
					if f.makes(m.Name) {
						continue
					}
					others++
					list = append(list, when(!m.Carrier, f.path, "%s in bridge %s has no carrier", m.Name, bridge)...)
				}
				list = append(list, when(others == 0 && bridge == f.cfg.Uplink.Bridge && len(f.cfg.Peers) > 0, f.path, "nothing but this NIC is in bridge %s", bridge)...)
			}
			return list
		})
	}, "bring up both ends (ip link set DEV up), plug in the cable, or let the interface towards the peers join the bridge (ip link set DEV master BRIDGE)"},
	{"socket", "whether QEMU may open sockets", func(s *seen) []wrong {
		if s.qemu == nil {
			return nil
		}
		return s.each(func(f *file) (list []wrong) {
			for _, socket := range socketsOf(f.cfg) {
				why := s.qemu.mayConnect(socket)
				list = append(list, when(why != "", socket, "%s", why)...)
			}
			return list
		})
	}, "put that user into the NIC's group (usermod -aG vnic libvirt-qemu), and run vnic with UMask=0007"},

	// Running NICs.
	{"answer", "whether NICs answer", func(s *seen) (list []wrong) {
		for _, n := range s.nics {
			list = append(list, when(n.err != nil, n.socket, "%v", n.err)...)
		}
		return list
	}, "start it (vnic run, systemctl start vnic); if it does not start, its log says why"},
	{"version", "versions of NICs", func(s *seen) []wrong {
		list := s.running(func(n *nic) []wrong {
			return when(n.is.Version != s.version, n.socket, "the NIC is vnic %s, this program %s", n.is.Version, s.version)
		})
		return append(list, s.peers(func(p *control.Peer) bool { return strings.Contains(p.Note, "speaks version") })...)
	}, "vnic upgrade runs the program on disk; install the same release on all hosts"},
	{"warning", "what NICs run without", func(s *seen) []wrong {
		return s.running(func(n *nic) (list []wrong) {
			for _, w := range n.is.Warnings {
				list = append(list, wrong{n.socket, "runs without " + w})
			}
			return append(list, when(n.is.UpgradeRefused != "", n.socket, "the last upgrade was refused: %s", n.is.UpgradeRefused)...)
		})
	}, "mend what it names, then vnic upgrade"},
	{"worker", "workers that ended", func(s *seen) []wrong {
		return s.running(func(n *nic) []wrong {
			crashed := n.is.Starts - 1 - n.is.Upgrades
			return when(n.is.Stuck > 0 || crashed > 0, n.socket, "%d workers ended by themselves, %d were stuck", max(crashed, n.is.Stuck), n.is.Stuck)
		})
	}, "the log and dmesg (OOM) say why; a crash is a bug: keep the log"},
	{"peer", "peers of NICs", func(s *seen) []wrong {
		return s.peers(func(p *control.Peer) bool {
			return (!p.Up || p.Note != "") && !strings.Contains(p.Note, "psp.mode") && !strings.Contains(p.Note, "speaks version") && !(p.Up && p.PathMTU > 0 && strings.Contains(p.Note, "uplink.mtu"))
		})
	}, "start it; peers[].cm, peers[].identity and peers[].tenants of both must name each other (docs/troubleshooting.md)"},
	{"impaired", "faults on purpose", func(s *seen) []wrong {
		return s.running(func(n *nic) (list []wrong) {
			for _, u := range n.is.Uplinks {
				for _, d := range []control.Impairment{u.RX.Impairment, u.TX.Impairment} {
					bad := d.Down || d.Loss+d.Corrupt+d.Reorder+d.Duplicate+d.Mark > 0 || d.DelayNS > 0 || d.Rate > 0
					if bad {
						list = append(list, wrong{n.socket, "the uplink " + u.Name + " loses or delays packets on purpose"})
						break
					}
				}
			}
			return list
		})
	}, "vnic inject link --clear, and see uplink.impair in the configuration"},
	{"function", "functions in error", func(s *seen) []wrong {
		return s.functions(func(f *control.Function) (string, bool) { return "it has stopped: " + f.Fault, f.State == "ERROR" })
	}, "its driver has to reset it; vnic show violations says what the driver did"},
	{"guest", "functions and ports that nobody uses", func(s *seen) []wrong {
		list := s.functions(func(f *control.Function) (string, bool) {
			return "no driver of " + f.Guest + " is attached", f.Guest != "" && f.Attached == "" && f.State != "ERROR" && f.Port == nil
		})
		return append(list, s.functions(func(f *control.Function) (string, bool) {
			if f.Port == nil {
				return "", false
			}
			if f.Port.Fault != "" {
				return "its port " + f.Port.Name + " has stopped: " + f.Port.Fault, true
			}
			return "no guest uses its port " + f.Port.Name, !f.Port.Up
		})...)
	}, "start the guest with the line that vnic qemu prints, and load its driver"},
}

// when returns one thing that is wrong, if is is true.
func when(is bool, about, format string, args ...any) []wrong {
	if !is {
		return nil
	}
	return []wrong{{about, fmt.Sprintf(format, args...)}}
}

func (s *seen) machineIs(is bool, format string, args ...any) []wrong {
	return when(is, "", format, args...)
}

// each applies find to each configuration that is valid.
func (s *seen) each(find func(*file) []wrong) (list []wrong) {
	for i := range s.files {
		if s.files[i].cfg != nil {
			list = append(list, find(&s.files[i])...)
		}
	}
	return list
}

// running applies find to each NIC that answers.
func (s *seen) running(find func(*nic) []wrong) (list []wrong) {
	for i := range s.nics {
		if s.nics[i].err == nil {
			list = append(list, find(&s.nics[i])...)
		}
	}
	return list
}

// peers tells of the peers of running NICs that are bad.
func (s *seen) peers(bad func(*control.Peer) bool) []wrong {
	return s.running(func(n *nic) (list []wrong) {
		for i := range n.is.Peers {
			p := &n.is.Peers[i]
			if !bad(p) {
				continue
			}
			what := p.Note
			if !p.Up {
				what = strings.TrimSuffix("is not reached: "+p.Note, ": ")
			}
			list = append(list, wrong{n.socket, fmt.Sprintf("peer %s %s", p.Identity, what)})
		}
		return list
	})
}

// functions tells of functions of running NICs.
func (s *seen) functions(find func(*control.Function) (what string, bad bool)) []wrong {
	return s.running(func(n *nic) (list []wrong) {
		for i := range n.functions {
			if what, bad := find(&n.functions[i]); bad {
				list = append(list, wrong{n.socket, n.functions[i].ID + ": " + what})
			}
		}
		return list
	})
}

// equal finds what several configurations use and only one may.
func (s *seen) equal() (list []wrong) {
	first := map[string]string{}
	once := func(path, what string) {
		if other, ok := first[what]; ok && other != path {
			list = append(list, wrong{path, what + " is already used by " + other})
			return
		}
		first[what] = path
	}
	s.each(func(f *file) []wrong {
		c := f.cfg
		once(f.path, "cm.name "+c.CM.Name)
		if c.Uplink.Type == config.UplinkTAP {
			once(f.path, "uplink.address "+c.Uplink.Address.Addr().String())
		}
		if c.Control != "" {
			once(f.path, "control "+c.Control)
		}
		for _, socket := range socketsOf(c) {
			once(f.path, "socket "+socket)
		}
		for _, l := range []struct {
			key string
			at  netip.AddrPort
		}{{"uplink.listen", c.Uplink.Listen}, {"cm.listen", c.CM.Listen}, {"metrics.listen", c.Metrics.Listen}, {"web.listen", c.Web.Listen}} {
			if l.at.IsValid() {
				once(f.path, l.key+" "+l.at.String())
			}
		}
		for _, n := range c.AllFunctions() {
			if n.Tenant != 0 && n.Address.IsValid() {
				once(f.path, fmt.Sprintf("address %s in tenant %d", n.Address, n.Tenant))
			}
		}
		return nil
	})
	return list
}

// socketsOf lists the sockets that QEMU opens.
func socketsOf(c *config.Config) (list []string) {
	for i := range c.Attach {
		if a := &c.Attach[i]; a.Type == config.AttachVhostUser {
			list = append(list, a.Socket)
		}
	}
	for _, f := range c.AllFunctions() {
		if f.Port != nil && f.Port.Socket != "" && f.Port.Listen != config.ListenGuest {
			list = append(list, f.Port.Socket)
		}
	}
	return list
}

// makes reports whether an interface is one that the NIC makes.
func (f *file) makes(name string) bool {
	if name == f.cfg.Uplink.Name {
		return true
	}
	for _, fn := range f.cfg.AllFunctions() {
		if fn.Port != nil && fn.Port.Name == name {
			return true
		}
	}
	return false
}

// atLeast reports whether the release of a kernel is not older.
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return true // not Linux' way to number
	}
	return a > major || a == major && b >= minor
}

// hasPeers reports whether a NIC has peers.
func (s *seen) hasPeers() bool {
	has := false
	s.each(func(f *file) []wrong {
		has = has || len(f.cfg.Peers) > 0
		return nil
	})
	return has
}

package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

func (c *Config) check(r *report) {
	if c.NIC.Host == 0 {
		r.add("nic.host", "missing or 0", "write a number from 1 to 255, or give the NIC a name (cm.name)")
	}
	if e := *c.NIC.Spin; e < 0 || e > maxSpin {
		r.add("nic.spin", fmt.Sprintf("%s is out of range", e), fmt.Sprintf("use 0s to %s", maxSpin))
	}
	if m := c.NIC.GuestMemory; m < minGuestMemory || m > maxGuestMemory {
		r.add("nic.guest_memory", fmt.Sprintf("%s is out of range", m), fmt.Sprintf("use %s to %s", minGuestMemory, maxGuestMemory))
	}
	if e := *c.NIC.Watchdog; e != 0 && e < minWatchdog {
		r.add("nic.watchdog", fmt.Sprintf("%s is too short", e), fmt.Sprintf("use %s or more, or 0s for none", minWatchdog))
	}
	if k := c.NIC.Recorder; k != nil {
		if k.Size < minRecorder || k.Size > maxRecorder {
			r.add("nic.recorder.size", fmt.Sprintf("%s is out of range", k.Size), fmt.Sprintf("use %s to %s", minRecorder, maxRecorder))
		}
		oneOf(r, "nic.recorder.payload", k.Payload, tape.Digest.String(), tape.Whole.String(), tape.None.String())
	}
	c.checkShards(r)
	c.checkLog(r)
	c.Uplink.check(r)
	c.checkRDMA(r)
	c.Falcon.check(r)
	c.checkPSP(r)
	c.checkCM(r)
	c.checkAttach(r)
	c.checkFunctions(r)
	c.checkTenants(r)
	c.checkCredits(r)
	c.checkPeers(r, func(i int) string { return fmt.Sprintf("peers[%d]", i) })
	c.Metrics.check(r)
	c.Web.check(r)
	if k := c.Capture; k != nil {
		if k.File == "" {
			r.add("capture.file", "missing", "name the pcapng file to write")
		}
		oneOf(r, "capture.mode", k.Mode, CaptureSealed, CaptureClear, CaptureBoth)
	}
}

func (m *Metrics) check(r *report) { checkHosts(r, "metrics", m.Listen, m.Hosts, 9470) }

func (w *Web) check(r *report) {
	checkHosts(r, "web", w.Listen, w.Hosts, 9480)
	if a := w.Listen.Addr(); a.IsValid() && !a.IsLoopback() && !w.Public {
		r.add("web.listen", fmt.Sprintf("%s is not a loopback address, and the page has no authentication", w.Listen),
			fmt.Sprintf("use 127.0.0.1:%d and reach it by ssh -L, or write web.public: true", w.Listen.Port()))
	}
}

// checkHosts checks the names by which an HTTP server of the NIC may be asked.
func checkHosts(r *report, section string, listen netip.AddrPort, hosts []string, port int) {
	if len(hosts) > 0 && !listen.IsValid() {
		r.add(section+".listen", fmt.Sprintf("missing, but %s.hosts are listed", section), fmt.Sprintf("give the address to listen on, as 127.0.0.1:%d, or leave hosts out", port))
	}
	for i, h := range hosts {
		if h == "" || strings.ContainsAny(h, ":/*[] ") {
			r.add(fmt.Sprintf("%s.hosts[%d]", section, i), fmt.Sprintf("%q is not a host's name", h), "write a name without scheme and port, as nic1.lab.example; addresses need no entry")
		}
	}
}

func (c *Config) checkLog(r *report) {
	oneOf(r, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(r, "log.format", c.Log.Format, LogText, LogJSON)
}

// Formats of the log.
const (
	LogText = "text" // key=value
	LogJSON = "json" // one JSON object per line
)

// SlogLevel returns the level as a slog.Level.
func (l Log) SlogLevel() slog.Level {
	switch l.Level {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}

func checkTransport(r *report, path, t string) {
	if !slices.Contains(Transports[:], t) {
		r.add(path, fmt.Sprintf("%q is not a transport", t), "write auto, falcon, roce or iwarp")
	}
}

func (c *Config) checkRDMA(r *report) {
	checkTransport(r, "rdma.transport", c.RDMA.Transport)
	if _, ok := cc.Lookup(c.RDMA.Congestion); !ok {
		r.add("rdma.congestion", fmt.Sprintf("%q is not a congestion control of RoCEv2", c.RDMA.Congestion), "write "+strings.Join(cc.Names(), " or "))
	}
	if c.RDMA.MTU != wire.SegmentFor(c.RDMA.MTU) {
		r.add("rdma.mtu", fmt.Sprintf("%d is not an RDMA MTU", c.RDMA.MTU), fmt.Sprintf("write a power of two from %d to %d, or leave it out", wire.MinSegment, wire.MaxSegment))
		return
	}
	overhead := c.overhead()
	if need := c.RDMA.MTU + overhead; c.Uplink.MTU < need && c.Uplink.MTU >= minUplinkMTU {
		fits := max(wire.SegmentFor(c.RDMADataFor(c.Uplink.MTU)), wire.MinSegment)
		r.add("rdma.mtu", fmt.Sprintf("%s does not fit uplink.mtu %d: with %d bytes of headers it needs %d", r.value("rdma.mtu", c.RDMA.MTU), c.Uplink.MTU, overhead, need),
			fmt.Sprintf("write %d or leave it out, or raise uplink.mtu", fits))
	}
}

func (c *Config) checkPSP(r *report) {
	oneOf(r, "psp.mode", c.PSP.Mode, PSPTunnel, PSPTransport)
	if c.PSP.Version > 3 {
		r.add("psp.version", fmt.Sprintf("%d is not a PSP version", c.PSP.Version), "write 0 (AES-GCM-128), 1 (AES-GCM-256), 2 (AES-GMAC-128) or 3 (AES-GMAC-256)")
	}
	// The remote time is a 32-bit count of 131.072 ns: half its range is 281 s.
	if m := c.PSP.ReplayMargin; m < time.Millisecond || m > 120*time.Second {
		r.add("psp.replay_margin", fmt.Sprintf("%s is out of range", m), "use 1ms to 120s")
	}
	// A key's IVs, picoseconds, may span 53 days before a new one is due.
	if e := *c.PSP.RotateEvery; e != 0 && (e < minRotateEvery || e > maxRotateEvery) {
		r.add("psp.rotate_every", fmt.Sprintf("%s is out of range", e), fmt.Sprintf("use %s to %s, or 0s to rotate only when asked", minRotateEvery, maxRotateEvery))
	}
}

func (c *Config) checkCM(r *report) {
	if err := cmlink.CheckName(c.CM.Name); err != nil {
		r.add("cm.name", err.Error(), "write the NAME of host-NAME.pem, or leave it out for nic.host")
	}
	c.checkDirectory(r)
	if !c.HasPeers() {
		return
	}
	if !c.CM.Listen.IsValid() {
		r.add("cm.listen", "missing, but peers are listed", "give the address to listen on, as 127.0.0.1:7471")
	}
	if c.CM.Identity == "" {
		r.add("cm.identity", "missing, but peers are listed", `name the folder that "vnic keys init" made for this host`)
	}
}

func (c *Config) checkDirectory(r *report) {
	e := c.Directory.Etcd
	if e == nil {
		return
	}
	if len(e.Endpoints) == 0 {
		r.add("directory.etcd.endpoints", "missing", "list etcd's members, as [https://10.1.0.1:2379]")
	}
	for i, s := range e.Endpoints {
		if u, err := url.Parse(s); err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
			r.add(fmt.Sprintf("directory.etcd.endpoints[%d]", i), fmt.Sprintf("%q is not the URL of an etcd member", s), "write https:// with an address and a port, as https://10.1.0.1:2379")
		}
	}
	if !strings.HasPrefix(e.Prefix, "/") || strings.Trim(e.Prefix, "/") == "" {
		r.add("directory.etcd.prefix", fmt.Sprintf("%q is not a prefix of keys", e.Prefix), "write the one that vnic fleet init printed, as /vnic/lab")
	}
	if a := c.CM.Listen.Addr(); a.IsValid() && a.IsUnspecified() {
		r.add("cm.listen", fmt.Sprintf("other hosts cannot connect to %s, which the directory would give them", c.CM.Listen), "write the address at which they reach this one")
	}
}

// Bytes of a unix socket's path: the kernel's limit, and the limit of the control socket, which is
// first created under a temporary name with the process number appended.
const (
	maxSocket  = 107
	maxControl = maxSocket - len(".4194304")
)

func (c *Config) checkAttach(r *report) {
	sockets := map[string]string{}
	if c.Control != "" {
		sockets[c.Control] = "control"
	}
	if n := len(c.Control); n > maxControl {
		r.add("control", fmt.Sprintf("%q has %d characters", c.Control, n), fmt.Sprintf("use at most %d", maxControl))
	}
	names, cids, vsocks := map[string]string{}, map[uint32]string{}, map[uint32]string{}
	for i := range c.Attach {
		a, path := &c.Attach[i], fmt.Sprintf("attach[%d]", i)
		oneOf(r, path+".type", a.Type, AttachVhostUser, AttachUnix, AttachVsock, AttachVfioUser)
		if a.Type != AttachVsock && a.Type != "" {
			if a.Socket == "" {
				r.add(path+".socket", "missing", "name the socket file to listen on")
			} else if first, dup := sockets[a.Socket]; dup {
				r.add(path+".socket", fmt.Sprintf("%q is already used by %s", a.Socket, first), "give each its own socket")
			} else if len(a.Socket) > maxSocket {
				r.add(path+".socket", fmt.Sprintf("%q has %d characters", a.Socket, len(a.Socket)), "the kernel allows 107; use a shorter path")
			} else {
				sockets[a.Socket] = path
			}
		}
		if a.Vsock != "" {
			switch first, dup := sockets[a.Vsock]; {
			case a.Type != AttachVhostUser:
				r.add(path+".vsock", "has no meaning for type "+a.Type, "leave it out")
			case dup:
				r.add(path+".vsock", fmt.Sprintf("%q is already used by %s", a.Vsock, first), "give each its own socket")
			case len(a.Vsock) > maxSocket:
				r.add(path+".vsock", fmt.Sprintf("%q has %d characters", a.Vsock, len(a.Vsock)), "the kernel allows 107; use a shorter path")
			default:
				sockets[a.Vsock] = path + ".vsock"
			}
		}
		unused := func(key string, given bool) {
			if given {
				r.add(path+"."+key, "has no meaning for type "+a.Type, "leave it out")
			}
		}
		unused("pci", a.PCI != nil && a.Type != AttachVfioUser)
		switch a.Type {
		case AttachVhostUser, AttachVfioUser:
			if a.CID < 3 || a.CID == 1<<32-1 {
				r.add(path+".cid", fmt.Sprintf("%d is not a guest's vsock context id", a.CID), "use 3 to 4294967294, one per guest")
			} else if first, dup := cids[a.CID]; dup {
				r.add(path+".cid", fmt.Sprintf("%d is already used by %s", a.CID, first), "give each guest its own")
			} else {
				cids[a.CID] = path
			}
			c.checkWindows(r, path, a)
			if a.Type == AttachVfioUser {
				unused("windows", a.Windows)
				oneOf(r, path+".pci.interrupts", a.PCI.Interrupts, PCIMSIX, PCIMSI)
			}
			unused("name", a.Name != "")
			unused("port", a.Port != 0)
			unused("ram", len(a.RAM) > 0)
		case AttachUnix:
			if first, dup := names[a.Name]; dup {
				r.add(path+".name", fmt.Sprintf("%s is already used by %s", r.value(path+".name", strconv.Quote(a.Name)), first), "give each unix attachment its own name")
			} else {
				names[a.Name] = path
			}
			unused("cid", a.CID != 0)
			unused("windows", a.Windows)
			unused("port", a.Port != 0)
			unused("ram", len(a.RAM) > 0)
		case AttachVsock:
			if first, dup := vsocks[a.Port]; dup {
				r.add(path+".port", fmt.Sprintf("%d is already used by %s", a.Port, first), "one vsock attachment serves all guests of a port")
			} else {
				vsocks[a.Port] = path
			}
			unused("windows", a.Windows)
			unused("socket", a.Socket != "")
			unused("cid", a.CID != 0)
			unused("name", a.Name != "")
			checkRAM(r, path, a.RAM)
		}
	}
}

func checkRAM(r *report, path string, ram []RAM) {
	seen := map[uint32]bool{}
	for i, m := range ram {
		p := fmt.Sprintf("%s.ram[%d]", path, i)
		if m.CID < 3 && m.CID != 1 {
			r.add(p+".cid", fmt.Sprintf("%d is not a guest's vsock context id", m.CID), "use the guest-cid QEMU was given, 3 or above, or 1 for processes on this host (vsock_loopback)")
		} else if seen[m.CID] {
			r.add(p+".cid", fmt.Sprintf("%d is listed twice", m.CID), "describe each guest's memory once")
		}
		seen[m.CID] = true
		if m.File == "" {
			r.add(p+".file", "missing", "name the file of QEMU's memory-backend-file with share=on")
		}
		if len(m.Layout) == 0 {
			r.add(p+".layout", "missing", "list the ranges, as {address: 0, size: 512M, offset: 0}")
		}
		for j, a := range m.Layout {
			q := fmt.Sprintf("%s.layout[%d]", p, j)
			switch {
			case a.Size == 0 || a.Size%4096 != 0 || a.Address%4096 != 0 || a.Offset%4096 != 0:
				r.add(q, fmt.Sprintf("address %s, size %s, offset %s are not whole 4 KiB pages", a.Address, a.Size, a.Offset), "use multiples of 4K and a size above 0")
			case a.Address+a.Size < a.Address || a.Offset+a.Size < a.Offset || a.Offset+a.Size > 1<<62:
				r.add(q, "the range wraps around", "use a smaller size")
			default:
				for k, b := range m.Layout[:j] {
					if a.Address < b.Address+b.Size && b.Address < a.Address+a.Size {
						r.add(q, fmt.Sprintf("overlaps layout[%d]", k), "give each guest-physical address once")
					}
				}
			}
		}
	}
}

// MaxWindows is the number of windows for which a guest's PCI bus has room.
const MaxWindows = 160

// GivesWindows reports whether the functions of the guest with a context id get windows.
func (c *Config) GivesWindows(cid uint32) bool {
	return slices.ContainsFunc(c.Attach, func(a Attach) bool { return a.CID == cid && a.givesWindows() })
}

func (a *Attach) givesWindows() bool { return a.Windows || a.Type == AttachVfioUser }

func (c *Config) checkWindows(r *report, path string, a *Attach) {
	if !a.givesWindows() {
		return
	}
	own := c.FunctionsOf(a.CID)
	if len(own) > MaxWindows {
		r.add(path+".windows", fmt.Sprintf("guest %d has %d functions", a.CID, len(own)), fmt.Sprintf("a guest has room for %d windows; give it fewer functions or no windows", MaxWindows))
	}
	for _, f := range own {
		if s := a.WindowSocket(f); len(s) > maxSocket {
			r.add(path+".socket", fmt.Sprintf("the socket of a window, %q, has %d characters", s, len(s)), "the kernel allows 107; use a shorter path")
			return
		}
	}
}

// Ranges of the wire formats.
const (
	maxPF        = 15
	maxVF        = 4095
	minUplinkMTU = 576
	minIPv6MTU   = 1280  // RFC 8200 §5
	maxUplinkMTU = 65521 // the TAP driver's limit
	maxIfName    = 15

	minRotateEvery = time.Second
	maxRotateEvery = 30 * 24 * time.Hour
	maxSpin        = 10 * time.Millisecond
	minKeepalive   = time.Second
	maxKeepalive   = 10 * time.Minute
	minGuestMemory = Size(1 << 30)
	maxGuestMemory = Size(64 << 40) // half of what a process can address
	minRecorder    = Size(8 << 20)
	maxRecorder    = Size(4 << 30)
	minWatchdog    = time.Second // an idle thread makes a turn every half second
	maxQueues      = 16          // tap.MaxQueues
	minUplinkSpeed = Rate(10e6)
	maxUplinkSpeed = Rate(4e12) // RegSpeed has 32 bits of Mbit/s, ib_port_attr less
)

// oneOf reports a value that is not one of the choices.
func oneOf(r *report, path, value string, choices ...string) {
	for _, c := range choices {
		if value == c {
			return
		}
	}
	what := fmt.Sprintf("%q is not known", value)
	if value == "" {
		what = "missing"
	}
	r.add(path, what, "write one of "+strings.Join(choices, ", "))
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// usable reports whether a host can have the address a.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != broadcast
}

// checkIfName reports a name that the kernel does not accept for a network device.
func checkIfName(r *report, path, name string) {
	switch {
	case len(name) > maxIfName:
		r.add(path, fmt.Sprintf("%q has %d characters", name, len(name)), fmt.Sprintf("use at most %d", maxIfName))
	case name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n%"):
		r.add(path, fmt.Sprintf("%q is not a network device name", name), "use letters, digits, - and _")
	}
}

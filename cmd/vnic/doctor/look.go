package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// machineCheck finds what a machine lacks for a configuration.
type machineCheck func(*config.Config) error

type options struct {
	files, sockets []string
	user           string
	check          machineCheck
}

// usualConfig is the configuration of the Debian package.
const usualConfig = "/etc/vnic/nic.yaml"

// seen is what the checks look at.
type seen struct {
	machine machine
	files   []file
	nics    []nic
	qemu    *account // that runs QEMU; nil: not known
	version string   // of this program
	now     time.Time
}

type machine struct {
	tun, kvm     error  // of opening the device
	noUSO        string // why TAPs carry no superframes; "": they do, or it is not known
	bridgeFilter bool   // iptables sees bridged packets
	clockWrong   bool   // nothing keeps the clock
	neighbours   string // which of the kernel's tables of neighbours is nearly full; "": none
	files        uint64
	locked       uint64 // bytes that this user may lock in memory
	root         bool
}

// file is a configuration.
type file struct {
	path    string
	err     error
	cfg     *config.Config // nil: err says why
	lacks   error          // what this machine lacks for it
	ends    time.Time      // of its identity; zero: it has none, or lacks has the reason
	bridges map[string][]tap.Member
}

// nic is a NIC that should run.
type nic struct {
	socket    string
	err       error // of asking it
	is        control.NIC
	functions []control.Function
	counters  control.Counters
}

// account is a user, as files' modes look at it.
type account struct {
	name   string
	uid    uint32
	groups []uint32
}

// look gathers what the checks look at.
func look(ctx context.Context, o *options, version string) *seen {
	s := &seen{machine: lookAtMachine(), version: version, now: time.Now()}
	files, sockets := o.files, slices.Clone(o.sockets)
	if _, err := os.Stat(usualConfig); err == nil && len(files)+len(sockets) == 0 {
		files = []string{usualConfig}
	}
	for _, path := range files {
		f := lookAtFile(path, o.check)
		if f.cfg != nil && f.cfg.Control != "" && !slices.Contains(sockets, f.cfg.Control) {
			sockets = append(sockets, f.cfg.Control)
		}
		s.files = append(s.files, f)
	}
	for _, path := range sockets {
		s.nics = append(s.nics, lookAtNIC(ctx, path))
	}
	s.qemu = lookUp(o.user)
	return s
}

// looked lists the files and sockets.
func (s *seen) looked() (list []string) {
	for i := range s.files {
		list = append(list, s.files[i].path)
	}
	for i := range s.nics {
		list = append(list, s.nics[i].socket)
	}
	return list
}

func lookAtMachine() (m machine) {
	m.tun, m.kvm = open("/dev/net/tun"), open("/dev/kvm")
	m.noUSO = lookAtUSO()
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		b, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + table)
		m.bridgeFilter = m.bridgeFilter || err == nil && strings.TrimSpace(string(b)) == "1"
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	m.clockWrong = err == nil && (state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0)
	m.neighbours = cmp.Or(neighboursIn("ARP", "arp_cache", "ipv4"), neighboursIn("IPv6", "ndisc_cache", "ipv6"))
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		m.files = limit.Max // Go programs raise the soft limit to it
	}
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		m.locked = limit.Cur
	}
	m.root = os.Geteuid() == 0
	return m
}

// neighboursIn says whether a table of neighbours is nearly full; "": it is not, or that is not known.
func neighboursIn(name, table, family string) string {
	stat, err := os.ReadFile("/proc/net/stat/" + table)
	most, also := os.ReadFile("/proc/sys/net/" + family + "/neigh/default/gc_thresh3")
	if errors.Join(err, also) != nil {
		return ""
	}
	return nearlyFull(name, string(stat), string(most))
}

// nearlyFull reads the statistics of a table of neighbours: names of columns, then a line of hexadecimal
// numbers for each processor. The first column, entries, is of the whole table.
func nearlyFull(name, stat, most string) string {
	_, lines, _ := strings.Cut(stat, "\n")
	has, err := strconv.ParseUint(strings.SplitN(lines, " ", 2)[0], 16, 64)
	room, also := strconv.ParseUint(strings.TrimSpace(most), 10, 64)
	if errors.Join(err, also) != nil || has < room/10*9 {
		return ""
	}
	return fmt.Sprintf("the kernel's table of neighbours (%s) has %d entries of at most %d", name, has, room)
}

// lookAtUSO asks a TAP that nobody sees. For a user who may not make one, the kernel's version
// decides.
func lookAtUSO() string {
	var has bool
	var err error
	done := make(chan struct{})
	go func() { // its thread ends with it, in its own namespace
		defer close(done)
		if err = netns.New(); err == nil {
			has, err = tap.HasUSO()
		}
	}()
	<-done
	var name unix.Utsname
	if errors.Join(err, unix.Uname(&name)) == nil && has {
		return ""
	}
	release := unix.ByteSliceToString(name.Release[:])
	switch {
	case err == nil:
		return "Linux " + release + " refuses UDP segmentation on a TAP"
	case !atLeast(release, usoMajor, usoMinor):
		return "Linux " + release + " has no UDP segmentation on TAPs"
	}
	return ""
}

// open opens a device for reading and writing, and closes it.
func open(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func lookAtFile(path string, check machineCheck) file {
	f := file{path: path, bridges: map[string][]tap.Member{}}
	if f.cfg, f.err = config.Load(path); f.err != nil {
		f.cfg = nil
		return f
	}
	f.lacks = check(f.cfg)
	if len(f.cfg.Peers) > 0 {
		if id, err := cmlink.Load(f.cfg.CM.Identity, f.cfg.CM.Name); err == nil {
			f.ends = id.Ends()
		}
	}
	for _, name := range bridgesOf(f.cfg) {
		if members, err := tap.Members(name); err == nil { // lacks has what is wrong with the bridge
			f.bridges[name] = members
		}
	}
	return f
}

// bridgesOf lists the bridges that a configuration names.
func bridgesOf(cfg *config.Config) (names []string) {
	if cfg.Uplink.Bridge != "" {
		names = append(names, cfg.Uplink.Bridge)
	}
	for _, f := range cfg.AllFunctions() {
		if f.Port != nil && f.Port.Bridge != "" && f.Port.Netns == "" && !slices.Contains(names, f.Port.Bridge) {
			names = append(names, f.Port.Bridge)
		}
	}
	return names
}

func lookAtNIC(ctx context.Context, socket string) nic {
	n, c := nic{socket: socket}, control.NewClient(socket)
	var err2, err3 error
	n.is, n.err = c.NIC(ctx)
	n.functions, err2 = c.Functions(ctx)
	n.counters, err3 = c.Counters(ctx)
	if n.err == nil {
		n.err = errors.Join(err2, err3)
	}
	return n
}

// lookUp finds the user that runs QEMU.
func lookUp(name string) *account {
	if name == "" {
		name = "libvirt-qemu"
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	a := &account{name: name, uid: uint32(uid)}
	ids, _ := u.GroupIds()
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			a.groups = append(a.groups, uint32(n))
		}
	}
	return a
}

// mayConnect returns what keeps a user from connecting to a socket, by the modes of the socket and of
// the folders that lead to it; "": nothing, or there is no socket.
func (a *account) mayConnect(socket string) string {
	const search, write = 1, 2
	for path := socket; ; path = filepath.Dir(path) {
		need := uint32(search)
		if path == socket {
			need = write
		}
		var st unix.Stat_t
		switch err := unix.Stat(path, &st); {
		case errors.Is(err, fs.ErrNotExist):
			return ""
		case err != nil:
			return err.Error()
		case !a.may(&st, need):
			return path + " is closed to " + a.name
		}
		if path == "/" || path == "." {
			return ""
		}
	}
}

func (a *account) may(st *unix.Stat_t, need uint32) bool {
	switch {
	case a.uid == 0:
		return true
	case st.Uid == a.uid:
		return st.Mode>>6&need == need
	case slices.Contains(a.groups, st.Gid):
		return st.Mode>>3&need == need
	}
	return st.Mode&need == need
}

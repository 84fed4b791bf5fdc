package controller

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestJobsInOrder checks that jobs run one after the other, each when the one before has its
// answer.
func TestJobsInOrder(t *testing.T) {
	var k Core
	var said []string
	var answers []func()
	slow := func(name string) {
		k.begin(func(_ vtime.Time, done func()) {
			said = append(said, name)
			answers = append(answers, done)
		})
	}
	quick := func(name string) {
		k.begin(func(_ vtime.Time, done func()) { said = append(said, name); done() })
	}
	runs := func(want ...string) {
		t.Helper()
		said = nil
		if k.runJobs(1); !slices.Equal(said, want) {
			t.Errorf("done are %v, want %v", said, want)
		}
	}
	runs()
	quick("a")
	slow("b")
	quick("c")
	slow("d")
	runs("a", "b")
	runs()
	answers[0]()
	runs("c", "d")
	quick("e")
	runs()
	answers[1]()
	runs("e")
	if runs(); k.jobs.waiting != nil || k.jobs.busy {
		t.Errorf("%d wait", len(k.jobs.waiting))
	}
}

// TestGIDsArePaced checks that peers are told of GIDs at once, and of further ones after a pause.
// Waiting commands complete then, once.
func TestGIDsArePaced(t *testing.T) {
	var g gids
	heard := 0
	change := func() {
		g.changed = true
		g.waiting = append(g.waiting, gidChange{then: func(error) { heard++ }})
	}
	if g.due(100) || g.deadline() != vtime.Never {
		t.Error("due without a change")
	}
	if g.told(100); g.next != 0 {
		t.Error("nothing was told, and there is a pause")
	}
	change()
	change()
	if !g.due(0) || g.deadline() != 0 {
		t.Error("the first change waits")
	}
	if g.told(100); heard != 2 || g.due(1<<60) || g.deadline() != vtime.Never {
		t.Errorf("%d heard", heard)
	}
	change()
	if g.due(100+gidPause-1) || !g.due(100+gidPause) || g.deadline() != 100+gidPause {
		t.Errorf("the next change is due at %d, want %d", g.deadline(), 100+gidPause)
	}
	if g.told(200); heard != 3 || g.waiting != nil {
		t.Errorf("%d heard", heard)
	}
}

// TestPlacesOfPorts checks that peers are told the addresses of ports that are up, in order, and
// only after a change. A tenant's networks follow its ports' addresses and go with the last port.
func TestPlacesOfPorts(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	for i := range cfg.Functions[0].VFs {
		cfg.Functions[0].VFs[i].Port = nil
	}
	p := newPlain(cfg)
	at := func(tenant uint32, up bool, addrs ...string) gateway.Place {
		return gateway.Place{Name: "vp", Tenant: tenant, Addresses: devicetest.Addrs(addrs...), MTU: 1400, Up: up}
	}
	told := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range p.addresses() {
			if a.MTU != 1400 || a.Tenant != 20 {
				t.Errorf("%+v", a)
			}
			got = append(got, netip.AddrFrom16(a.Addr).Unmap().String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("peers are told of %v, want %v", got, want)
		}
	}
	subnets := func(want ...string) {
		t.Helper()
		var got []string
		for _, s := range p.networks.Of(20).Subnets {
			got = append(got, s.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("subnets %v, want %v", got, want)
		}
	}
	p.set(9, at(20, true, "10.1.0.9", "fd00::9"))
	p.set(3, at(20, true, "10.1.0.3"))
	p.set(5, at(20, false, "10.1.0.5"))
	if told("10.1.0.3", "10.1.0.9", "fd00::9"); !p.untold || p.users[20] != 3 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	subnets("10.1.0.0/24", "fd00::/64")
	p.untold = false
	if p.remove(77); p.untold {
		t.Error("a port that was not there is gone")
	}
	p.set(9, at(20, true, "10.2.0.9")) // moves
	told("10.1.0.3", "10.2.0.9")
	subnets("10.1.0.0/24", "10.2.0.0/24")
	if !p.untold || p.users[20] != 3 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	p.untold = false
	p.remove(3)
	p.remove(5)
	told("10.2.0.9")
	subnets("10.2.0.0/24")
	if !p.untold || p.users[20] != 1 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	p.set(9, at(30, true, "10.2.0.9")) // to another tenant
	if _, left := p.users[20]; left || p.users[30] != 1 {
		t.Errorf("ports by tenant: %v", p.users)
	}
	subnets()
	p.remove(9)
	if len(p.users) != 0 || len(p.ports) != 0 || p.addresses() != nil {
		t.Errorf("left: %v, %v", p.users, p.ports)
	}
}

// TestPeerMailIsBounded checks that a peer that sends faster than the core works has to wait, and
// stops waiting when its mailbox is closed. Messages are taken in order.
func TestPeerMailIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Core
		m := k.PeerMail(2)
		for range peerMailSize {
			m.Message([]byte("x"))
		}
		done := 0
		go func() { m.Message([]byte("one more")); done++ }()
		if synctest.Wait(); done != 0 || len(m.waiting) != peerMailSize {
			t.Errorf("%d messages wait", len(m.waiting))
		}
		if posted := k.box.Take(); len(posted) != 1 {
			t.Errorf("it stands in the box %d times", len(posted))
		}
		m.mu.Lock() // as Drain does
		m.waiting, m.posted = nil, false
		m.mu.Unlock()
		m.space.Broadcast()
		if synctest.Wait(); done != 1 || len(m.waiting) != 1 || len(k.box.Take()) != 1 {
			t.Errorf("%d messages wait when there is room", len(m.waiting))
		}
		for range peerMailSize - 1 {
			m.Message([]byte("x"))
		}
		go func() { m.Message([]byte("too late")); done++ }()
		synctest.Wait()
		m.Close()
		if synctest.Wait(); done != 2 || len(m.waiting) != peerMailSize {
			t.Errorf("%d messages wait after it was closed", len(m.waiting))
		}
	})
	var k Core
	k.box.Stop()
	m := k.PeerMail(2)
	m.Up()
	if m.Down(); !m.closed || len(m.waiting) != 1 {
		t.Errorf("a core that has stopped has %d messages", len(m.waiting))
	}
}

// TestPeersNews checks that the manager is told of link up, link down and messages, and that
// invalid messages are counted.
func TestPeersNews(t *testing.T) {
	core, err := NewCore(CoreConfig{
		NIC: devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"}), Shards: 1, Rand: devicetest.Seeded(1),
		Home: func(uint32) int { return 0 }, Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	core.Line(0).Serve(func([]Order) {})
	m := core.PeerMail(2)
	step := func() (messages int) {
		var out CoreOutput
		core.Step(1e9, &out)
		return len(out.Messages)
	}
	up := func() bool { return core.Manager.Peers()[0].Up }
	if step(); up() {
		t.Error("the peer is there")
	}
	m.Up()
	if n := step(); n == 0 {
		t.Error("the peer is not greeted")
	}
	m.Message([]byte("nonsense"))
	if step(); core.refused != 1 {
		t.Errorf("%d messages were refused", core.refused)
	}
	m.Down()
	if step(); up() || core.refused != 1 {
		t.Error("the peer is there still")
	}
}

// TestWarningsAreSaidOnce checks that a warning is logged when it is new or its text changes, and
// stays until it is cleared.
func TestWarningsAreSaidOnce(t *testing.T) {
	var log bytes.Buffer
	w := NewWarnings(slog.New(slog.NewTextHandler(&log, nil)))
	said := func(want int, list ...string) {
		t.Helper()
		if n := strings.Count(log.String(), "goes on without"); n != want || !slices.Equal(w.List(), list) {
			t.Errorf("said %d times, want %d; there are %q", n, want, w.List())
		}
	}
	said(0)
	w.Warn("metrics", errors.New("busy"), "wait")
	w.Warn("metrics", errors.New("busy"), "wait")
	said(1, "metrics: busy")
	w.Warn("capture", errors.New("full"), "wait")
	w.Warn("metrics", errors.New("gone"), "wait")
	said(3, "capture: full", "metrics: gone")
	w.Clear("metrics")
	w.Clear("metrics")
	said(3, "capture: full")
	w.Warn("metrics", errors.New("gone"), "wait")
	said(4, "capture: full", "metrics: gone")
}

// TestWhichMemoryLimit checks that the lowest limit counts, that the innermost of equal limits is
// named, and that values which mean "no limit" are ignored.
func TestWhichMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes uint64
		file  string
	}{
		{"equal ones", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.high": "1000\n", "sys/fs/cgroup/a/memory.max": "1000\n",
		}, 1000, "a/b/memory.max"},
		{"of the root", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000, "cgroup/memory.max"},
		{"the most there is", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4611686018427387903\n"}, 1<<62 - 1, "a/memory.max"},
		{"as good as none", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4611686018427387904\n"}, 0, ""},
		{"beside other controllers", map[string]string{
			"proc/self/cgroup": "nonsense\n3:cpu,memory,io:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 1000, "x/memory.limit_in_bytes"},
		{"another controller", map[string]string{
			"proc/self/cgroup": "3:memorynot:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 0, ""},
		{"both versions", map[string]string{
			"proc/self/cgroup": "0::/u\n4:memory:/x\n", "sys/fs/cgroup/unified/u/memory.max": "900\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 900, "u/memory.max"},
	} {
		if l := ReadMemoryLimit(cgroups(t, c.files)); l.bytes != c.bytes || !strings.HasSuffix(l.file, c.file) {
			t.Errorf("%s: %+v", c.name, l)
		}
	}
	if err := (MemoryLimit{}).Check(); err != nil {
		t.Errorf("no limit: %v", err)
	}
	if err := (MemoryLimit{bytes: 1, file: "x"}).Check(); err == nil ||
		!strings.Contains(err.Error(), "x allows 0 MiB") {
		t.Error(err)
	}
}

// TestWarnsFromTheFirstByte checks the boundary: memory that just fits gives no warning, one byte
// more does.
func TestWarnsFromTheFirstByte(t *testing.T) {
	for more, warns := range []bool{false, true} {
		m := GuestMemory{Limit: MemoryLimit{bytes: ownMemory + 1<<20, file: "memory.max"}}
		w := m.Is(&guest.Session{From: guest.Key{CID: 3}}, uint64(1<<20+more))
		if (w != "") != warns || warns && !strings.Contains(w, "memory.max allows 193 MiB") {
			t.Errorf("%d bytes more than there are: %q", more, w)
		}
	}
}

package shard

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// functionsEach is the number of functions of each peer.
const functionsEach = 8

// manyPeers is a NIC with many peers, in virtual time: the peers are messages of their connection
// managers, and answer nothing else.
type manyPeers struct {
	t      testing.TB
	now    falcon.Time
	core   *controller.Core
	out    controller.CoreOutput
	shards []*Shard
	outs   []thread.Output
}

// addressOf returns the address of a function of a peer.
func addressOf(peer, function int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 100 + byte(peer>>8), byte(peer), byte(function + 1)})
}

// newManyPeers returns a NIC with n peers whose links are up, and which have said what they have.
func newManyPeers(t testing.TB, n int) *manyPeers {
	t.Helper()
	var b strings.Builder
	fmt.Fprint(&b, `
nic: {host: 7, shards: 1}
uplink: {backend: memory, mtu: 4500, address: 10.99.0.1/16}
cm: {listen: "127.0.0.1:1", identity: unused, name: here}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 7, address: 10.0.0.1, port: {name: vp1}}
peers:
`)
	for i := range n {
		fmt.Fprintf(&b, "  - {name: peer-%d, underlay: 10.99.%d.%d, cm: '127.0.0.1:2', tenants: [7], functions: [", i, 1+i>>8, i&255)
		for f := range functionsEach {
			fmt.Fprintf(&b, "{tenant: 7, address: %s}, ", addressOf(i, f))
		}
		fmt.Fprintln(&b, "]}")
	}
	cfg, err := config.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	m := &manyPeers{t: t, now: 1_000_000_000}
	m.core, m.shards = newNIC(t, cfg, 5)
	m.outs = make([]thread.Output, len(m.shards))
	for i := range n {
		hello, ports := cm.Hello{Host: 7, Instance: uint64(i + 1)}, cm.PORTS{}
		for f := range functionsEach {
			a, fn := addressOf(i, f), uint32(7<<16|f+1)
			gid := netip.AddrFrom16(a.As16()).As16()
			hello.Endpoints = append(hello.Endpoints, cm.Endpoint{Tenant: 7, GID: gid, Function: fn})
			ports.Ports = append(ports.Ports, cm.PortAddress{Tenant: 7, Addr: gid, Function: fn, MTU: 1400})
		}
		mail := m.core.Peers.Find(fmt.Sprintf("peer-%d", i)).Mail
		mail.Up()
		mail.Message(cm.Encode(&hello))
		mail.Message(cm.Encode(&ports))
		m.step()
	}
	return m
}

// step runs what is due now.
func (m *manyPeers) step() {
	for again := true; again; {
		again = false
		m.core.Step(m.now, &m.out)
		m.out.Effects.Do()
		for i, s := range m.shards {
			out := &m.outs[i]
			s.Step(m.now, &thread.Input{}, out)
			out.Do()
			s.Flush(m.now, out)
			out.Do()
			s.uplink.tx.Taken(len(s.uplink.tx.Pending()))
			again = again || out.More || !s.inbox.Empty()
		}
		again = again || !m.core.Idle()
	}
}

// pass lets time pass.
func (m *manyPeers) pass(d falcon.Time) {
	for end := m.now + d; ; m.step() {
		next := m.out.Deadline
		for i := range m.outs {
			next = min(next, m.outs[i].Deadline)
		}
		if m.now = max(next, m.now+1); m.now >= end {
			m.now = end
			return
		}
	}
}

// cost is what a NIC's peers take.
type cost struct {
	heap    uint64        // bytes, while they are there
	objects uint64        // made meanwhile
	time    time.Duration // of the processor
}

// costOf has n peers come, be there for ten minutes, change and go.
func costOf(t testing.TB, n int) (c cost) {
	var before, there, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begun := processorTime(t)
	m := newManyPeers(t, n)
	m.pass(600e9)
	c.time = processorTime(t) - begun
	for _, p := range m.core.DescribePeers(nil) {
		if !p.Up || p.Functions != functionsEach || p.Refused != 0 {
			t.Fatalf("%+v", p)
		}
	}
	if n := len(m.core.Routes()); n < functionsEach {
		t.Fatalf("%d routes", n)
	}
	runtime.GC()
	runtime.ReadMemStats(&there)
	c.heap = there.HeapAlloc - before.HeapAlloc
	begun = processorTime(t)
	list := m.core.Peers.List()
	if err := m.core.Peers.Set(m.now, list[:n/2]); err != nil {
		t.Fatal(err)
	}
	m.step()
	if err := m.core.Peers.Set(m.now, nil); err != nil {
		t.Fatal(err)
	}
	m.step()
	c.time += processorTime(t) - begun
	if n := len(m.shards[0].peers) + len(m.core.Manager.CM.Peers()); n != 0 {
		t.Fatalf("%d peers are left", n)
	}
	runtime.ReadMemStats(&after)
	c.objects = after.Mallocs - before.Mallocs
	return c
}

// TestAThousandPeersTakeTenTimesAHundred: memory and work of a NIC's peers grow as their number does.
// The time is logged only: a busy machine would fail the test.
func TestAThousandPeersTakeTenTimesAHundred(t *testing.T) {
	costOf(t, 10)
	few, many := costOf(t, 100), costOf(t, 1000)
	t.Logf("100 peers: %+v\n1000 peers: %+v", few, many)
	if many.heap > 12*few.heap || many.objects > 12*few.objects {
		t.Errorf("1000 peers take %.1f times the memory of 100, and %.1f times the objects made", float64(many.heap)/float64(few.heap), float64(many.objects)/float64(few.objects))
	}
	const most = 64 << 10
	if each := many.heap / 1000; each > most {
		t.Errorf("a peer with %d functions takes %d bytes, at most %d", functionsEach, each, most)
	}
}

// BenchmarkPeers measures what a peer takes, and how a thousand compare with a hundred: coming, ten minutes
// of virtual time, changing and going.
func BenchmarkPeers(b *testing.B) {
	costOf(b, 10)
	var few, many cost
	for range 5 { // in turn, so that other load on the machine affects both
		x, y := costOf(b, 100), costOf(b, 1000)
		few.time, few.heap = few.time+x.time, few.heap+x.heap
		many.time, many.heap = many.time+y.time, many.heap+y.heap
	}
	b.ReportMetric(float64(many.heap-few.heap)/5/900, "fleet/peer_bytes")
	b.ReportMetric(float64(many.heap)/float64(few.heap), "fleet/memory1000_over_100")
	b.ReportMetric(float64(many.time)/float64(few.time), "fleet/peers1000_over_100")
	b.ReportMetric(0, "ns/op") // says nothing
}

// processorTime returns what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

package rdma

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestAnEmptySendQueueIsPolledForATimeUnlessSetOtherwise: a poll time that is unset or invalid takes the
// default; the smallest valid one is kept.
func TestAnEmptySendQueueIsPolledForATimeUnlessSetOtherwise(t *testing.T) {
	for set, want := range map[vtime.Time]vtime.Time{-1: 200e3, 0: 200e3, 1: 1} {
		if got := NewEngine(Config{PollTime: set}).shared.PollTime; got != want {
			t.Errorf("%d: %d, want %d", set, got, want)
		}
	}
}

// TestClosedFunctionsAreCountedOnce: the sum of an engine's counters does not change when functions
// close, even if they are closed more than once.
func TestClosedFunctionsAreCountedOnce(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	for range 3 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
		p.a.send.wait(1)
	}
	e, a, b := p.hosts[0].e, p.hosts[0].fn, p.hosts[1].fn
	before := e.Stats()
	if before.PushesTx != 3 || before.PushesRx != 3 {
		t.Fatalf("counted %+v", before)
	}
	for i, f := range []*Function{a, a, b} {
		f.Close(p.now)
		if s := e.Stats(); s.PushesTx != 3 || s.PushesRx != 3 || s.BytesTx != before.BytesTx {
			t.Errorf("after %d closed: %+v", i, s)
		}
	}
	if len(e.functions) != 0 {
		t.Errorf("%d functions are left", len(e.functions))
	}
}

// TestAFunctionThatComesAgainNumbersItsQueuePairsAnew: the peers' kernels still know its earlier queue pairs,
// and would take a new one with the same number for one of them. This holds after a reset, and at a NIC to
// which the function has moved.
func TestAFunctionThatComesAgainNumbersItsQueuePairsAnew(t *testing.T) {
	seen := map[uint32]bool{}
	for nic := range 4 {
		e := NewEngine(Config{})
		e.UseSecret([32]byte{byte(nic)})
		for range 4 {
			f := e.NewFunction(1, nil, verbs.Limits{}.WithDefaults(), nil)
			domain, st := f.OpenXRCD()
			if st != abi.StatusOK {
				t.Fatal(st)
			}
			for range 4 {
				n, st := f.CreateQP(&abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: domain})
				if st != abi.StatusOK || seen[n] {
					t.Errorf("%v, number %#x, after %v", st, n, seen)
				}
				seen[n] = true
			}
			f.Close(0)
		}
	}
}

// ways makes destinations that record how they are used.
type ways struct{ made []*way }

type way struct{ wanted, left int }

func (w *ways) To(*verbs.Address, bool) verbs.Destination {
	c := new(way)
	w.made = append(w.made, c)
	return c
}

func (c *way) Want(vtime.Time)                             { c.wanted++ }
func (c *way) Send(vtime.Time, *verbs.Datagram) verbs.Sent { return verbs.Taken }
func (c *way) Leave(vtime.Time)                            { c.left++ }

// TestDatagramsUseFalconUnlessRoCEIsChosen: datagrams to an address use Falcon's link if there is
// no RoCEv2 port, if RoCEv2 is not chosen, or if RoCEv2 cannot reach the address. Multicast uses
// RoCEv2 only.
func TestDatagramsUseFalconUnlessRoCEIsChosen(t *testing.T) {
	v4, v6 := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 9}, [16]byte{0: 0xfd, 15: 9}
	port := newPort(t)
	for name, c := range map[string]struct {
		port   verbs.Destinations
		gid    [16]byte
		chosen bool
		links  int  // of Falcon that are made, and wanted
		none   bool // nothing carries datagrams there
	}{
		"Falcon alone":              {nil, v4, false, 1, false},
		"Falcon alone, a group":     {nil, group(1), false, 0, true},
		"not chosen":                {port, v4, false, 1, false},
		"chosen":                    {port, v4, true, 0, false},
		"of another family":         {port, v6, true, 1, false},
		"a group":                   {port, group(1), false, 0, false},
		"a group of another family": {port, [16]byte{0: 0xff, 1: 5}, false, 0, true},
	} {
		links := new(ways)
		all := &destinations{links: links, port: c.port, chosen: func(gid [16]byte) bool { return c.chosen && gid == c.gid }}
		got := all.To(&verbs.Address{GID: c.gid}, true)
		if (got == nil) != c.none {
			t.Errorf("%s: carried by %v", name, got)
			continue
		}
		if got == nil {
			continue
		}
		for range 2 {
			got.Want(1)
		}
		got.Leave(2)
		if len(links.made) != c.links {
			t.Errorf("%s: %d links", name, len(links.made))
			continue
		}
		for _, l := range links.made {
			if l.wanted != 2 || l.left != 1 {
				t.Errorf("%s: %+v", name, *l)
			}
		}
	}
}

// newPort is a port with an IPv4 address.
func newPort(t testing.TB) *roce.Port {
	t.Helper()
	return Wire[*roce.Engine](NewEngine(Config{})).NewPort(netip.AddrFrom4([4]byte{10, 0, 0, 1}), 1500, nil).(*roce.Port)
}

// TestDatagramsUseTheChosenWire: datagrams use the wire that is chosen at the moment, with the same
// handle.
func TestDatagramsUseTheChosenWire(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newUDPair(t, worldConfig{}, qpConfig{})
	roce := false
	for i, h := range p.hosts {
		h.fn.UsePort(p.roce.ports[i], func(gid [16]byte) bool { return roce && gid == p.hosts[1-i].gid() })
	}
	var sent [2]uint64 // over Falcon, over RoCEv2
	counts := func() [2]uint64 {
		return [2]uint64{p.hosts[0].fe.Stats().PacketsSent, p.roce.ports[0].Stats().Sent}
	}
	for _, roce = range []bool{false, true, false, true, true} {
		p.settle(1e9) // acknowledgements
		sent = counts()
		p.qps[1].receive(1, p.mem[1].sge(0, 4096))
		success(t, p.unicast(p.qps[1], 100))
		now := counts()
		if over := [2]bool{now[0] > sent[0], now[1] > sent[1]}; over != [2]bool{!roce, roce} {
			t.Errorf("RoCEv2 %t: sent over Falcon and RoCEv2: %v", roce, over)
		}
	}
	ok(t, p.hosts[0].fn.DestroyAH(p.now, p.ah[0]))
	p.settle(100e9)
	if d := p.hosts[0].e.shared.Timers.Deadline(); d != vtime.Never {
		t.Errorf("something waits until %d for a handle that is gone", d)
	}
}

// TestASumCountsEveryCounter: a sum counts every counter, each by itself.
func TestASumCountsEveryCounter(t *testing.T) {
	var a, b, want Stats
	counters := func(s *Stats) (list []reflect.Value) {
		v := reflect.ValueOf(s).Elem()
		for _, f := range reflect.VisibleFields(v.Type()) {
			if !f.Anonymous {
				list = append(list, v.FieldByIndex(f.Index))
			}
		}
		return list
	}
	va, vb, vw := counters(&a), counters(&b), counters(&want)
	for i := range va {
		va[i].SetUint(uint64(1000 + i))
		vb[i].SetUint(uint64(1 + 7*i))
		vw[i].SetUint(uint64(1001 + 8*i))
	}
	if a.add(&b); a != want {
		t.Errorf("%+v\nwant %+v", a, want)
	}
}

// TestBothEndsCountAnExchange: a WRITE of three packets, a READ of two, an atomic, a SEND that
// finds no receive at first, a WRITE that is refused, and two requests that are flushed behind it.
func TestBothEndsCountAnExchange(t *testing.T) {
	overAll(t, func(t *testing.T) {
		a, b := exchange(t)
		for _, c := range []struct {
			what      string
			got, want uint64
		}{
			{"requests read", a.Posted, 7},
			{"completions", a.Completed, 7},
			{"completions of flushed requests", a.Flushed, 2},
			{"completions of failed requests", a.Errors, 1},
			{"queue pairs that failed", a.QPErrors + b.QPErrors, 2},
			{"READ and atomic packets sent", a.PullsTx, 3},
			{"READ and atomic packets served", b.PullsRx, 3},
			{"bytes sent", a.BytesTx, 3034},
			{"bytes that came back", a.BytesRx, 1508},
			{"packets taken", b.PushesRx, 4},
			{"bytes taken", b.BytesRx, 3010},
			{"receiver not ready, said", b.RNRTx, 1},
			{"receiver not ready, heard", a.RNRRx, 1},
		} {
			if c.got != c.want {
				t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
			}
		}
		if b.Refused == 0 {
			t.Error("no refusal is counted")
		}
	})
}

// exchange returns what both functions counted.
func exchange(t *testing.T) (a, b Stats) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(4096, 1500))
	p.a.post(p.remote(abi.OpFetchAdd, 0), p.ma.sge(0, 8))
	success(t, p.a.send.wait(3))
	p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
	p.settle(100e3)
	p.b.receive(1, p.mb.sge(0, 100))
	success(t, p.a.send.wait(1))
	x := p.remote(abi.OpWrite, 0)
	x.RKey ^= 1 << 24
	p.a.post(x, p.ma.sge(0, 8))
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.a.send.wait(3)
	p.settle(10e6)
	return p.hosts[0].fn.Stats(), p.hosts[1].fn.Stats()
}

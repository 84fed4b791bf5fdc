package device

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/conform"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// stage is a function that faults are injected into, with a queue pair that is connected to another
// NIC's.
type stage struct {
	*testing.T
	w    *world
	a, b *endpoint
	svc  uint64
}

func newStage(t *testing.T) *stage {
	w := newWorld(t)
	s := &stage{T: t, w: w, a: newEndpoint(t, w.open(0, "pf0.vf1")), b: newEndpoint(t, w.open(1, "pf0.vf1")), svc: 100}
	connect(t, s.a, s.b, s.svc)
	return s
}

// again connects new queue pairs.
func (s *stage) again() {
	s.Helper()
	ctx := testContext(s)
	for _, e := range []*endpoint{s.a, s.b} {
		must(s.T, e.qp.Destroy(ctx))
		var err error
		e.qp, err = e.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, Access: allAccess})
		must(s.T, err)
	}
	s.svc++
	connect(s.T, s.a, s.b, s.svc)
}

// inject adds a rule to function pf0.vf1 of a NIC.
func (s *stage) inject(nic int, r fault.Rule) {
	s.Helper()
	_, err := s.w.nics[nic].InjectFault(s.Context(), control.FaultChange{Function: "pf0.vf1", Add: &r})
	must(s.T, err)
}

func (s *stage) clear(nic int) {
	s.Helper()
	list, err := s.w.nics[nic].InjectFault(s.Context(), control.FaultChange{Function: "pf0.vf1", Clear: true})
	must(s.T, err)
	if len(list) != 0 {
		s.Fatalf("after clear: %+v", list)
	}
}

// hits returns how often the only rule has hit.
func (s *stage) hits(nic int) uint64 {
	s.Helper()
	list, err := s.w.nics[nic].Faults(s.Context())
	must(s.T, err)
	if len(list) != 1 {
		s.Fatalf("rules: %+v", list)
	}
	return list[0].Hits
}

func (s *stage) post(op guestlib.Opcode, id uint64) {
	s.Helper()
	must(s.T, s.a.qp.PostSend(&guestlib.SendWR{
		ID: id, Opcode: op, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.a.mr.SGE(0, 64)}, RemoteAddr: s.b.mr.Addr(), RKey: s.b.mr.RKey(),
	}))
}

// works checks that a WRITE works.
func (s *stage) works() {
	s.Helper()
	s.post(guestlib.Write, 77)
	if wc := s.a.next(s); wc.Err() != nil || wc.ID != 77 {
		s.Fatalf("afterwards: %+v", wc)
	}
}

// fails checks that a request ends with a status, and that the next one is flushed.
func (s *stage) fails(op guestlib.Opcode, want guestlib.WCStatus) {
	s.Helper()
	s.post(op, 5)
	if wc := s.a.next(s); wc.ID != 5 || wc.Status != want {
		s.Fatalf("%+v, want %v", wc, want)
	}
	if s.a.qp.State() != abi.QPStateErr {
		s.event(abi.EventQPFatal)
	}
}

// idle checks that no completion comes for a moment.
func (s *stage) idle() {
	s.Helper()
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, err := s.a.cq.Poll(make([]guestlib.WC, 1)); n != 0 || err != nil {
			s.Fatalf("%d completions, %v", n, err)
		}
	}
}

// event waits for an event of device a.
func (s *stage) event(typ abi.EventType) guestlib.Event {
	s.Helper()
	for {
		select {
		case e := <-s.a.dev.Events():
			if e.Type == typ {
				return e
			}
		case <-time.After(testTime):
			s.Fatalf("no %s", typ)
		}
	}
}

// reset does what a driver does after its function was stopped: it starts again.
func (s *stage) reset() {
	s.Helper()
	must(s.T, s.a.dev.Reset(testContext(s)))
	s.a = newEndpoint(s.T, s.a.dev)
	s.svc++
	ctx := testContext(s)
	must(s.T, s.b.qp.Destroy(ctx))
	var err error
	s.b.qp, err = s.b.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: s.b.cq, Access: allAccess})
	must(s.T, err)
	connect(s.T, s.a, s.b, s.svc)
	s.works()
}

// ownFaults skips a test that needs functions without other faults.
func ownFaults(t *testing.T) {
	t.Helper()
	if *profileSeed != 0 {
		t.Skip("its functions are under a profile already (-profile.seed)")
	}
}

// TestADriverSeesEachFaultAndRecovers injects every fault into a working function. Its driver must see what docs/faults.md
// says, and recover as it says.
func TestADriverSeesEachFaultAndRecovers(t *testing.T) {
	ownFaults(t)
	tests := map[fault.Kind]func(s *stage){
		fault.CQEError: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.CQEError, Opcode: "write", Nth: 2, Status: "remote-operation-error"})
			s.works()
			s.fails(guestlib.Write, abi.WCRemOpErr)
			s.again()
			s.works()
			if n := s.hits(0); n != 1 {
				s.Errorf("%d hits", n)
			}
		},
		fault.WrongKey: func(s *stage) {
			s.inject(1, fault.Rule{Kind: fault.WrongKey, Limit: 1})
			s.fails(guestlib.Write, abi.WCRemAccessErr)
			s.again()
			s.works()
		},
		fault.DMA: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.DMA, Limit: 1})
			s.fails(guestlib.Write, abi.WCLocProtErr)
			s.again()
			s.works()
			s.clear(0)
			s.inject(1, fault.Rule{Kind: fault.DMA, Limit: 1}) // where the data should arrive
			s.fails(guestlib.Write, abi.WCRemOpErr)
			s.again()
			s.works()
		},
		fault.CommandFail: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.CommandFail, Command: "AllocPD", Every: 2})
			for i := range 6 {
				_, err := s.a.dev.AllocPD(testContext(s))
				if errors.Is(err, guestlib.ErrNoResources) != (i%2 == 1) {
					s.Errorf("AllocPD %d: %v", i, err)
				}
			}
			s.works()
		},
		fault.StuckQueue: func(s *stage) {
			s.works()
			s.inject(0, fault.Rule{Kind: fault.StuckQueue})
			s.post(guestlib.Write, 1)
			s.idle()
			if s.hits(0) == 0 {
				s.Error("no hits")
			}
			s.clear(0)
			if wc := s.a.next(s); wc.ID != 1 || wc.Err() != nil {
				s.Errorf("%+v", wc)
			}
			s.inject(0, fault.Rule{Kind: fault.StuckQueue, QP: s.a.qp.Num(), ForNS: 150e6})
			s.post(guestlib.Write, 2)
			if wc := s.a.next(s); wc.ID != 2 || wc.Err() != nil { // it ends by itself
				s.Errorf("%+v", wc)
			}
		},
		fault.Starve: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.Starve})
			s.post(guestlib.Write, 1)
			s.idle()
			s.clear(0)
			if wc := s.a.next(s); wc.ID != 1 || wc.Err() != nil {
				s.Errorf("%+v", wc)
			}
			s.works()
		},
		fault.EventLost: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.EventLost, Event: "cq", Limit: 1})
			for s.hits(0) == 0 {
				ctx, cancel := context.WithCancel(testContext(s))
				var other sync.WaitGroup
				other.Go(func() {
					time.Sleep(20 * time.Millisecond) // until Wait has armed; if it has not, there is no event to lose
					s.post(guestlib.Write, 9)
					for s.hits(0) == 0 && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					time.Sleep(50 * time.Millisecond)
					cancel()
				})
				err := s.a.cq.Wait(ctx)
				cancel()
				other.Wait()
				if lost := s.hits(0) == 1; lost != errors.Is(err, context.Canceled) || !lost && err != nil {
					s.Fatalf("Wait: %v with %d events lost", err, s.hits(0))
				}
				if wc := s.a.next(s); wc.ID != 9 || wc.Err() != nil { // it is there, and polling finds it
					s.Fatalf("%+v", wc)
				}
			}
			s.works()
			s.clear(0)
			s.inject(0, fault.Rule{Kind: fault.EventLost, Event: "admin", Nth: 1})
			done := make(chan error)
			go func() {
				_, err := s.a.dev.AllocPD(testContext(s))
				done <- err
			}()
			select {
			case err := <-done:
				s.Fatalf("a command ended without an event: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			_, err := s.a.dev.AllocPD(testContext(s)) // its event reports both
			must(s.T, err)
			must(s.T, <-done)
		},
		fault.EventDuplicate: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.EventDuplicate})
			for range 20 {
				s.works()
				_, err := s.a.dev.AllocPD(testContext(s))
				must(s.T, err)
			}
			if s.hits(0) < 20 {
				s.Errorf("%d hits", s.hits(0))
			}
		},
		fault.EventLate: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.EventLate, Event: "admin", DelayNS: 60e6})
			start := time.Now()
			_, err := s.a.dev.AllocPD(testContext(s))
			must(s.T, err)
			if d := time.Since(start); d < 60*time.Millisecond {
				s.Errorf("a command whose event is 60 ms late took %v", d)
			}
		},
		fault.RegisterLate: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.RegisterLate, Limit: 3, DelayNS: 60e6})
			start := time.Now()
			s.reset() // writes and reads registers, and works
			if d := time.Since(start); d < 3*60*time.Millisecond || s.hits(0) != 3 {
				s.Errorf("with %d answers of registers 60 ms late, a reset took %v", s.hits(0), d)
			}
		},
		fault.CQOverrun: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.CQOverrun, Limit: 1})
			s.post(guestlib.Write, 1)
			if e := s.event(abi.EventCQError); abi.Status(e.Status) != abi.StatusNoResources {
				s.Errorf("%+v", e)
			}
			if n, err := s.a.cq.Poll(make([]guestlib.WC, 1)); n != 0 || err == nil {
				s.Errorf("%d completions of a queue that overflowed, %v", n, err)
			}
			if v, err := s.a.dev.Violations(testContext(s)); err != nil || len(v) != 0 {
				s.Errorf("violations of a driver that did nothing wrong: %v, %v", v, err)
			}
			s.reset()
		},
		fault.Reset: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.Reset, Opcode: "read", Limit: 1})
			s.works()
			s.post(guestlib.Read, 1)
			if e := s.event(abi.EventFunctionState); abi.State(e.Status) != abi.StateReset {
				s.Errorf("%+v", e)
			}
			s.reset()
		},
		fault.FunctionFault: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.FunctionFault, Limit: 1})
			s.post(guestlib.Write, 1)
			if e := s.event(abi.EventFunctionFault); abi.Fault(e.Status) != abi.FaultMemory || !strings.Contains(e.Reason, "injected") {
				s.Errorf("%+v", e)
			}
			s.reset()
		},
		fault.LinkFlap: func(s *stage) {
			s.inject(0, fault.Rule{Kind: fault.LinkFlap, Limit: 1, DelayNS: 150e6})
			start := time.Now()
			s.post(guestlib.Write, 1)
			for _, up := range []uint32{0, 1} {
				if e := s.event(abi.EventLinkState); e.Status != up {
					s.Errorf("%+v, want %d", e, up)
				}
			}
			if wc := s.a.next(s); wc.ID != 1 || wc.Err() != nil { // sent again when the link was back
				s.Errorf("%+v", wc)
			}
			if d := time.Since(start); d < 140*time.Millisecond {
				s.Errorf("a link that was down for 150 ms let a WRITE through after %v", d)
			}
			s.works()
		},
	}
	for _, kind := range fault.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			f := tests[kind]
			if f == nil {
				t.Fatal("no test")
			}
			f(newStage(t))
		})
	}
}

// TestFaultRulesAreRefusedListedAndRemoved checks that wrong rules are refused with a reason, that rules are listed and
// removed one by one, and that those of a removed function are removed too.
func TestFaultRulesAreRefusedListedAndRemoved(t *testing.T) {
	ownFaults(t)
	w := newWorld(t)
	n := w.nics[0]
	add := func(function string, r fault.Rule) error {
		_, err := n.InjectFault(t.Context(), control.FaultChange{Function: function, Add: &r})
		return err
	}
	for want, err := range map[string]error{
		"h1.pf0.vf1: unknown fault \"x\"; use one of":  add("pf0.vf1", fault.Rule{Kind: "x"}),
		"there is no function h2.pf0.vf1; this NIC is": add("h2.pf0.vf1", fault.Rule{Kind: fault.DMA}),
		"unknown profile \"x\"; use hostile or none": func() error {
			_, err := n.InjectFault(t.Context(), control.FaultChange{Function: "pf0.vf1", Profile: "x"})
			return err
		}(),
		"h1.pf0.vf1: there is no rule 9; see vnic inject li": func() error {
			_, err := n.InjectFault(t.Context(), control.FaultChange{Function: "pf0.vf1", Clear: true, ID: 9})
			return err
		}(),
		"h1.pf0.vf1: nothing to change": func() error {
			_, err := n.InjectFault(t.Context(), control.FaultChange{Function: "pf0.vf1"})
			return err
		}(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s…", err, want)
		}
	}
	list := func() string {
		l, err := n.Faults(t.Context())
		must(t, err)
		var s []string
		for _, f := range l {
			s = append(s, fmt.Sprintf("%s/%d %s", f.Function, f.ID, f.Kind))
		}
		return strings.Join(s, ", ")
	}
	if got := list(); got != "" {
		t.Fatalf("rules that were refused: %s", got)
	}
	must(t, add("pf0.vf1", fault.Rule{Kind: fault.DMA}))
	must(t, add("pf0.vf1", fault.Rule{Kind: fault.EventLost, ForNS: 1}))
	must(t, add("pf0.vf2", fault.Rule{Kind: fault.Starve}))
	if _, err := n.InjectFault(t.Context(), control.FaultChange{Function: "pf0.vf1", Profile: "hostile", Seed: 3}); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != "h1.pf0.vf1/0 profile hostile, h1.pf0.vf1/1 dma, h1.pf0.vf1/2 event-lost, h1.pf0.vf2/1 starve" {
		t.Error(got)
	}
	_, err := n.InjectFault(t.Context(), control.FaultChange{Function: "pf0.vf1", Clear: true, ID: 1})
	must(t, err)
	if _, err := n.InjectFault(t.Context(), control.FaultChange{Clear: true}); err != nil || list() != "" {
		t.Errorf("%v, %s", err, list())
	}
}

// TestAllOperationsWorkUnderTheHostileProfile runs all operations between two functions that do everything that docs/abi
// allows, with several seeds, between NICs and inside one.
func TestAllOperationsWorkUnderTheHostileProfile(t *testing.T) {
	ownFaults(t)
	seeds := []uint64{1, 2, 3}
	if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		w := newWorld(t)
		for _, x := range []struct {
			nic      int
			function string
		}{{0, "pf0.vf1"}, {0, "pf0.vf2"}, {1, "pf0.vf1"}} {
			_, err := w.nics[x.nic].InjectFault(t.Context(), control.FaultChange{Function: x.function, Profile: "hostile", Seed: seed})
			must(t, err)
		}
		for name, peer := range map[string]workload.Config{
			"two NICs": {URL: "unix://" + w.sockets[1] + "?function=pf0.vf1", PeerGID: mustGID(t, "192.168.100.21")},
			"one NIC":  {URL: "unix://" + w.sockets[0] + "?function=pf0.vf2", PeerGID: mustGID(t, "192.168.100.12")},
		} {
			t.Run(fmt.Sprintf("seed %d, %s", seed, name), func(t *testing.T) {
				runWorkloads(t,
					workload.Config{URL: "unix://" + w.sockets[0] + "?function=pf0.vf1", PeerGID: peer.PeerGID},
					workload.Config{URL: peer.URL, PeerGID: mustGID(t, "192.168.100.11")})
			})
		}
		must(t, w.nics[0].units[0].Do(func(falcon.Time) {
			for _, f := range w.nics[0].units[0].Guests().Injected() {
				if _, _, d := f.Faults.Profile(); d.Pauses == 0 || d.Holds == 0 || d.LateEvents == 0 || d.Spurious == 0 || d.LateCommands == 0 {
					t.Errorf("seed %d, %s: the profile did %+v", seed, f.ID, d)
				}
			}
		}))
	}
}

func mustGID(t *testing.T, text string) guestlib.GID {
	t.Helper()
	gid, err := guestlib.ParseGID(text)
	must(t, err)
	return gid
}

// runWorkloads runs all operations between two functions.
func runWorkloads(t *testing.T, first, second workload.Config) {
	t.Helper()
	var wg sync.WaitGroup
	for i, c := range []workload.Config{first, second} {
		c.First, c.Service, c.Count, c.Sizes = i == 0, 5, 3, []int{1, 1000, 9000}
		wg.Go(func() {
			if err := workload.Run(testContext(t), c); err != nil {
				t.Errorf("%s: %v", c.URL, err)
			}
		})
	}
	wg.Wait()
}

// TestTheHostileProfileBreaksNoClause runs the conformance kit on a function that does everything that docs/abi
// allows: it breaks no clause. A function with a fault does.
func TestTheHostileProfileBreaksNoClause(t *testing.T) {
	ownFaults(t)
	w := newWorld(t)
	run := func(match string, wait time.Duration) string {
		t.Helper()
		r, err := conform.Run(t.Context(), conform.Config{URL: "unix://" + w.sockets[0] + "?function=pf0.vf1", Wait: wait, Match: regexp.MustCompile(match)})
		must(t, err)
		for _, x := range r.Results {
			if x.Outcome == conform.Failed {
				t.Logf("%s: %s", x.Name, x.Detail)
			}
		}
		return strings.Join(r.Failed(), " ")
	}
	inject := func(c control.FaultChange) {
		t.Helper()
		c.Function = "pf0.vf1"
		_, err := w.nics[0].InjectFault(t.Context(), c)
		must(t, err)
	}
	for seed := range uint64(2) {
		inject(control.FaultChange{Profile: "hostile", Seed: 10 + seed})
		if failed := run("", testTime); failed != "" {
			t.Errorf("seed %d: %s", 10+seed, failed)
		}
	}
	inject(control.FaultChange{Clear: true})
	inject(control.FaultChange{Add: &fault.Rule{Kind: fault.EventLost, Event: "cq"}})
	if failed := run("^cq.(arm|phase)$", 2*time.Second); failed != "cq.arm" {
		t.Errorf("with events lost %q failed, want cq.arm", failed)
	}
	inject(control.FaultChange{Clear: true})
	inject(control.FaultChange{Add: &fault.Rule{Kind: fault.CQEError, Every: 20}})
	if failed := run("^(queue.order|cq.arm|hello.version)$", testTime); failed != "queue.order" {
		t.Errorf("with every 20th work request failing %q failed, want queue.order", failed)
	}
}

// TestForgottenPeersBeginAnew checks that when a NIC forgets a peer that it has a link to, the peer
// forgets it too: connections end at both, and new ones carry data.
func TestForgottenPeersBeginAnew(t *testing.T) {
	s := newStage(t)
	s.works()
	n := s.w.nics[0]
	must(t, n.core.Do(func(now falcon.Time) { n.core.Manager.CM.ForgetPeer(now, 1) }))
	n.links.End(1, errors.New("as after a fault"))
	s.event(abi.EventDisconnected)
	s.w.waitPeers()
	s.w.until("the peer forgets, too", func() bool { return s.w.counter(1, "cm.peer_restarts") == 1 })
	s.again()
	s.works()
	if r := s.w.counter(0, "cm.peer_restarts"); r != 0 {
		t.Errorf("%d restarts of a peer that did not", r)
	}
}

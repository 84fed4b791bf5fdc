package shard

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/allocs"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var wire100us = sim.Impairment{Delay: 50_000}

// TestTwoFunctionsExchangeData moves data between two functions in virtual time: of two NICs, and of one, on one
// shard or two.
func TestTwoFunctionsExchangeData(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		eachDistance(t, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := pair(v)
			exchange(t, a, b, 300_000)
		})
	})
}

// exchange does a WRITE, a READ back and a SEND of n bytes.
func exchange(t *testing.T, a, b *driver, n int) {
	t.Helper()
	src, dst := a.data(), b.data()
	for i := range n {
		src[i] = byte(i*13 + i>>9)
	}
	success := func(d *driver, what string) {
		t.Helper()
		if cqe := d.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("%s: %s", what, cqe.Status)
		}
	}
	a.send(abi.OpWrite, 0, n, b, 5)
	success(a, "WRITE")
	if !bytes.Equal(dst[5:5+n], src[:n]) {
		t.Fatal("WRITE: data differs")
	}
	a.send(abi.OpRead, 1<<20, n, b, 5)
	success(a, "READ")
	if !bytes.Equal(src[1<<20:1<<20+n], src[:n]) {
		t.Fatal("READ: data differs")
	}
	clear(dst[:n])
	b.receive(0, n)
	a.send(abi.OpSend, 0, n, b, 0)
	success(a, "SEND")
	success(b, "receive")
	if !bytes.Equal(dst[:n], src[:n]) {
		t.Fatal("SEND: data differs")
	}
}

// TestASeedAlwaysGivesTheSameFrames runs the same seed twice over a bad wire and checks for the same frames at the same
// times, byte for byte, and for other frames with other seeds.
func TestASeedAlwaysGivesTheSameFrames(t *testing.T) { eachShards(t, testReplay) }

func testReplay(t *testing.T) {
	bad := sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.03, Duplicate: 0.02, Reorder: 0.05, ReorderDelay: 100_000, Corrupt: 0.05}
	run := func(seed uint64) uint64 {
		v := newVirtual(t, seed, bad)
		a, b := pair(v)
		exchange(t, a, b, 200_000)
		if v.dropped(0, dropPSPAuth)+v.dropped(1, dropPSPAuth) == 0 {
			t.Error("the wire corrupted frames and none failed authentication")
		}
		return v.trace.Sum64()
	}
	seen := map[uint64]bool{}
	for seed := uint64(1); seed <= 3; seed++ {
		first, second := run(seed), run(seed)
		if first != second {
			t.Errorf("seed %d: traces %x and %x differ", seed, first, second)
		}
		if seen[first] {
			t.Errorf("seed %d: same trace as another seed", seed)
		}
		seen[first] = true
	}
}

// TestNoAllocations checks that once a connection works, packets allocate nothing, in either
// direction: doorbell, rings, Falcon, sealing, opening, completion.
func TestNoAllocations(t *testing.T) { eachShards(t, testNoAllocationsOf) }

func testNoAllocationsOf(t *testing.T) {
	for name, features := range map[string]uint64{"records": 0, "event index": abi.FeatureEventIndex} {
		t.Run(name+" one by one", func(t *testing.T) { testNoAllocations(t, features, nil, false) })
		t.Run(name+" superframes", func(t *testing.T) { testNoAllocations(t, features, &joiner{}, false) })
		t.Run(name+" recorded", func(t *testing.T) {
			rotating(t)
			testNoAllocations(t, features, nil, false)
		})
		t.Run(name+" traced", func(t *testing.T) { testNoAllocations(t, features, nil, true) })
	}
}

func testNoAllocations(t *testing.T, features uint64, super *joiner, traced bool) {
	v := newVirtual(t, 1, wire100us)
	v.tell, v.super = false, super
	a, b := newDriver(v, 0, 1), newDriver(v, 1, 1)
	a.b.Features, b.b.Features = features, features
	a.setUp()
	b.setUp()
	a.connectTo(b, 99)
	for _, d := range []*driver{a, b} {
		if traced {
			if _, err := (TraceView{d.fn.fs}).Start(d.fn.ID, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	work := func(op abi.Opcode, n int) func() {
		return func() {
			a.send(op, 0, n, b, 0)
			for {
				if cqe, ok := a.completion(); ok {
					if cqe.Status != abi.WCSuccess {
						t.Fatal(cqe.Status)
					}
					break
				}
				v.step()
				if !v.advance(v.now + 1e9) {
					t.Fatal("no completion")
				}
			}
			a.collect()
			b.collect()
		}
	}
	for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
		f := work(op, 64<<10)
		for range 200 { // tables and pools reach their size
			f()
		}
		if n := allocs.PerRun(100, f); n != 0 {
			t.Errorf("%s of 64 KiB: %v allocations, want none", op, n)
		}
	}
}

// TestTwoShards runs the tests that may involve several shards again with two shards for each NIC.
// Those under eachShards do so by themselves; -shards makes all others do it.
func TestTwoShards(t *testing.T) {
	if perNIC != 1 {
		t.Skip("all tests run with several shards")
	}
	perNIC = 2
	defer func() { perNIC = 1 }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"AttackARP", TestForgedARPDoesNotMoveAPeer},
		{"AttackChecksumOverAddress", TestAttackChecksumOverAddress},
		{"BadPackets", TestBadPacketsAreDroppedAndCounted},
		{"CaptureExplains", TestAClearCaptureNamesTheWorkRequest},
		{"CaptureExplainsPlainIP", TestCaptureExplainsPlainIP},
		{"ChangeAllOrNothing", TestChangeAllOrNothing},
		{"ConnectionEnds", TestAnEndedConnectionLeavesNothing},
		{"DatagramsToNobody", TestDatagramsToNobody},
		{"DetachMidOperation", TestDetachMidOperation},
		{"DisconnectFinishes", TestRequestsUnderWayCompleteBeforeADisconnect},
		{"EndWhileConnecting", TestEndWhileConnecting},
		{"ExpiredSPI", TestPacketsOfAnExpiredSPIAreDropped},
		{"ForeignSPI", TestATenantsKeyOpensNoOtherTenantsConnection},
		{"GatewayClass", TestPacketsOfTheGatewayClassNeverReachTheTransport},
		{"ConnectionsInsideOneNIC", TestConnectionsInsideOneNIC},
		{"KeyLog", TestEverySAHasALineInTheKeyLog},
		{"LinkState", TestAFunctionWhoseLinkIsDownIsCutOff},
		{"LoopbackCapture", TestTrafficInsideANICIsCapturedClear},
		{"LoopbackTenants", TestTenantsOfOneNICCannotReachEachOther},
		{"PFResetTakesVFsDown", TestPFResetTakesVFsDown},
		{"ResetLeavesNoConnection", TestResetLeavesNoConnection},
		{"PathHeaders", TestPacketsHaveTheHeadersOfTheirPath},
		{"PlainBadInput", TestPlainBadInput},
		{"PlainHostilePeer", TestPlainHostilePeer},
		{"PlainNoAllocations", TestPlainNoAllocations},
		{"PlainRekey", TestNoPlainPacketIsLostWhileKeysChange},
		{"PlainTenantsApart", TestPlainTenantsApart},
		{"PlainTunnel", TestPlainIPCrossesSealedUnderItsTenantsCookie},
		{"PlainWithdraw", TestADisabledFunctionsAddressesAreWithdrawn},
		{"RoCE", TestRoCECarriesDataOverABadWire},
		{"RoCECredits", TestRoCECredits},
		{"RoCEDatagrams", TestRoCEDatagrams},
		{"RotateUnreachable", TestAnUnreachablePeersKeyLastsOnePeriodMore},
		{"RoutesNameThePortOrPeer", TestRoutesNameThePortOrPeer},
		{"SuperframesImpaired", TestSuperframesCrossABadWireWhole},
		{"SurvivesPanics", TestAFrameThatCausesAPanicStopsNothingElse},
		{"TransportAuto", TestOnlyForeignHostsAreReachedOverRoCE},
		{"TransportMode", TestTransportModeCarriesFalconDirectlyInPSP},
	} {
		t.Run(c.name, c.test)
	}
}

// within is a source that does something in a Step.
type within func(now falcon.Time)

func (f within) Drain(now falcon.Time) { f(now) }

// watchedLog calls itself with every line.
type watchedLog struct {
	slog.Handler
	tell func()
}

func (l watchedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l watchedLog) Handle(context.Context, slog.Record) error {
	l.tell()
	return nil
}

// watchedDevice records each change of its link, and does nothing else.
type watchedDevice struct {
	gateway.Device
	tell func()
}

func (watchedDevice) USO() bool { return false }

func (p watchedDevice) SetLink(bool) error {
	p.tell()
	return nil
}

// TestStepDoesNoIO checks that a Step leaves work on descriptors, devices and logs as effects, and
// that it is done only when those run.
func TestStepDoesNoIO(t *testing.T) {
	v := newPortWorldWith(t, 41, func(int, *config.Config) {})
	s := v.shards[0]
	done, doing := map[string]int{}, false
	does := func(what string) {
		if done[what]++; !doing {
			t.Errorf("%s within a Step", what)
		}
	}
	d, irq := interrupted(v, 0)
	d.setUp()
	v.idle(cmDelay)
	s.log.To = slog.New(watchedLog{slog.DiscardHandler, func() { does("log") }})
	onlyPort(s).Device = watchedDevice{tell: func() { does("carrier") }}
	s.guests.Bells.Wait = func(int, bool) error { does("epoll"); return nil }
	bell := devicetest.NewBell(t)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_ = s.Do(func(falcon.Time) {})
	}()
	for s.inbox.Empty() { // until the caller has posted
		runtime.Gosched()
	}
	s.inbox.Post(within(func(now falcon.Time) {
		id, _ := pfvf.NewID(1, 0, 1)
		c := s.funcs.settings(id)
		c.Link = pfvf.LinkDisable
		if err := s.funcs.set(now, id, c); err != nil {
			t.Error(err)
		}
		s.guests.Bells.Add(d.b, bell, nil)
		s.log.Line(now, slog.LevelInfo, "something")
	}))
	d.ring(abi.DoorbellCQArm, d.cqn, ^uint32(0)) // armed behind: the event comes at once
	s.Step(v.now, &thread.Input{}, &v.outs[0][0])
	s.Flush(v.now, &v.outs[0][0])
	if irq.raised[0] != 0 {
		t.Error("an interrupt within a Step")
	}
	select {
	case <-answered:
		t.Error("a caller was answered before what it had done was done")
	default:
	}
	doing = true
	v.outs[0][0].Do()
	<-answered
	for _, what := range []string{"log", "carrier", "epoll"} {
		if done[what] == 0 {
			t.Errorf("%s: not done at all", what)
		}
	}
	if irq.raised[0] == 0 {
		t.Error("no interrupt")
	}
}

// TestCompletionBeforeEvents checks that when the events that a command causes are sent, its
// completion is already in memory, and an event for it is sent without arming (DEV-505).
func TestCompletionBeforeEvents(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriver(v, 0, 1), newDriver(v, 0, 2) // of one NIC: nothing takes time
	a.setUp()
	b.setUp()
	a.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	a.collect()
	b.collect()
	b.async = nil
	var raw [abi.AdminCmdSize]byte
	cmd := abi.AdminCmd{Opcode: abi.AdminOpCMConnect, ID: 77}
	(&abi.CMConnect{QPN: b.qpn, Service: 6, DGID: a.fn.GID()}).Marshal(cmd.Params[:]) // nobody listens there
	cmd.Marshal(raw[:])
	if err := b.sq.Push(raw[:]); err != nil {
		t.Fatal(err)
	}
	index, _, _ := b.sq.Publish()
	b.ring(abi.DoorbellAdmin, 0, index)
	var async []abi.AsyncEvent
	v.until("the event", func() bool {
		var cqs []uint32
		if cqs, async = b.ch.Waiting(); len(async) == 0 {
			return false
		}
		if !slices.Contains(cqs, abi.AdminCQ) {
			t.Error("no event of the admin CQ")
		}
		if ok, err := b.cq.Poll(raw[:]); err != nil || !ok {
			t.Fatalf("the event is there, the completion is not: %v", err)
		}
		return true
	})
	var cqe abi.AdminCQE
	if cqe.Unmarshal(raw[:]); cqe.ID != 77 || async[0].Type != abi.EventRejected {
		t.Errorf("%+v, %s", cqe, async[0].Type)
	}
}

// TestAFrameThatCausesAPanicStopsNothingElse checks that a frame that makes the code that parses it panic is counted and
// logged, and that all other traffic continues. No such frame is known, so the test breaks the
// state that the code works on.
func TestAFrameThatCausesAPanicStopsNothingElse(t *testing.T) {
	v := newPortWorld(t, 61)
	a, b := pair(v)
	s := v.shards[1]
	var log bytes.Buffer
	v.logTo(1, &log)
	var sealed []byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && len(f) > 500 {
			sealed = bytes.Clone(f[42:])
		}
		return f
	}
	exchange(t, a, b, 1000)

	underlay := s.uplink.underlay
	s.uplink.underlay = nil
	if _, verdict := s.in.input(v.now, []byte("a frame")); verdict.String() != "drop-runt" || s.drops[dropPanic] != 1 {
		t.Errorf("%s, counted %d times", verdict, s.drops[dropPanic])
	}
	s.uplink.underlay = underlay

	opener := s.in.opener
	s.in.opener = nil
	if _, ok := s.in.open(v.now, sealed); ok || s.drops[dropPanic] != 2 {
		t.Errorf("opened: %v, counted %d times", ok, s.drops[dropPanic])
	}
	s.in.opener = opener

	v.ports[1] = append(v.ports[1], gateway.PortInput{Frame: make([]byte, 100)}) // from no port
	v.received(0)
	if n := v.reason(1, gateway.DropPanic); n != 1 {
		t.Errorf("the gateway counted %d", n)
	}
	if n := strings.Count(log.String(), "please report"); n != 3 || !strings.Contains(log.String(), "fromPort") {
		t.Errorf("%d lines in the log:\n%s", n, log.String())
	}

	exchange(t, a, b, 1000)
	v.say(0, 0, host1, host2, 500)
	v.say(1, 0, host2, host1, 500)
	v.idle(1e6)
	if len(v.received(1)) != 1 || len(v.received(0)) != 1 {
		t.Error("plain IP does not pass any more")
	}
}

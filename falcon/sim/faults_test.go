package sim_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestEveryTransactionCompletesOnceDespiteFaults breaks links and closes connections in the middle of work, with short limits. Whatever
// happens, every transaction completes exactly once, in RSN order where promised, before EvClosed,
// and nothing is left behind.
func TestEveryTransactionCompletesOnceDespiteFaults(t *testing.T) {
	if *seedFlag != 0 {
		runFaults(t, *seedFlag)
		return
	}
	runs := *runsFlag
	if testing.Short() {
		runs = 10
	}
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		if runFaults(t, seed); t.Failed() {
			t.Fatalf("replay: go test ./falcon/sim -run 'TestEveryTransactionCompletesOnceDespiteFaults$' -seed %d", seed)
		}
	}
}

// ledger checks the events of one connection end.
type ledger struct {
	t         *testing.T
	ordered   bool
	issued    []uint64
	completed map[uint64]int
	order     []uint64
	closed    bool
	responses int
	freed     int
}

func (l *ledger) event(ev *falcon.Event) {
	if l.closed {
		l.t.Errorf("%v after closed", ev.Kind)
	}
	switch ev.Kind {
	case falcon.EvPushDone, falcon.EvPullDone:
		l.completed[ev.Tag]++
		l.order = append(l.order, ev.Tag)
	case falcon.EvResponseDone:
		l.freed++
	case falcon.EvClosed:
		l.closed = true
	}
}

func (l *ledger) check() {
	for _, tag := range l.issued {
		if l.completed[tag] != 1 {
			l.t.Errorf("transaction %#x completed %d times", tag, l.completed[tag])
		}
	}
	if len(l.order) != len(l.issued) || l.responses != l.freed {
		l.t.Errorf("%d issued, %d completed; %d responses, %d freed", len(l.issued), len(l.order), l.responses, l.freed)
		return
	}
	for i := range l.order {
		if l.ordered && l.order[i] != l.issued[i] {
			l.t.Errorf("completion %d is %#x, want %#x", i, l.order[i], l.issued[i])
			return
		}
	}
}

func runFaults(t *testing.T, seed uint64) uint64 {
	r := random{seed: ^seed}
	segment := 1 << (10 + r.intn(6))
	profile := falcon.Hardware()
	profile.MaxRetransmits, profile.TxnTimeout = 1+r.intn(4), falcon.Time(2+r.intn(20))*ms
	var ulps [2]*sim.ULP
	var cfg [2]falcon.Config
	var nodes [2]*credit.Node
	for i := range ulps {
		nodes[i] = credit.New(nil, credit.Cost{50, 2000, 50, 2000, uint32(2 + r.intn(20)), 2000, credit.Unlimited, credit.Unlimited})
		cfg[i] = falcon.Config{Profile: profile, Credits: nodes[i], RxCells: 1 + r.intn(20), RxContexts: 4 + r.intn(40)}
		u := &sim.ULP{}
		u.OnEvent = func(_ falcon.Time, ev *falcon.Event) { ev.Conn.User().(*ledger).event(ev) }
		u.OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
			switch r.intn(60) {
			case 0: // never answered
			case 1:
				ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, uint8(r.intn(16)), 0)
			case 2:
				ev.Conn.NackPush(now, ev.RSN, wire.NackCIE, 0, 1)
			case 3:
				if r.chance(0.1) {
					ev.Conn.Close(now)
					return
				}
				ev.Conn.AckPush(now, ev.RSN)
			default:
				ev.Conn.AckPush(now, ev.RSN)
			}
		}
		u.OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
			switch r.intn(60) {
			case 0:
			case 1:
				ev.Conn.RNRPull(now, ev.RSN, uint8(r.intn(16)))
			case 2:
				ev.Conn.NackPush(now, ev.RSN, wire.NackCID, 0, 0)
			default:
				if ev.Conn.RespondPull(now, ev.RSN, key, ev.Length) == nil {
					ev.Conn.User().(*ledger).responses++
				}
			}
		}
		u.FillError = func(falcon.TxnKind, uint64) bool { return r.chance(0.02) }
		ulps[i] = u
	}
	imp := sim.Impairment{Delay: 5 * us, Jitter: 20 * us, Loss: float64(r.intn(40)) / 100, Duplicate: 0.1}
	w := sim.NewWorld(seed, cfg, [2]sim.Handler{ulps[0], ulps[1]}, imp)
	w.Now = ms
	var ledgers []*ledger
	var conns []*falcon.Conn
	for i := range uint32(6) {
		c := falcon.ConnConfig{
			LocalCID: 1 + i, RemoteCID: 100 + i, Protocol: wire.ProtocolRDMA, Ordered: i%2 == 0, MTU: segment + 104,
			TxDataPSN: 0xfffffff0, TxReqPSN: 5, RxDataPSN: 9, RxReqPSN: 0xfffffffa, TxRSN: 3, RxRSN: 0xfffffffe,
		}
		a, b, err := w.Connect(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, conn := range []*falcon.Conn{a, b} {
			l := &ledger{t: t, ordered: c.Ordered, completed: map[uint64]int{}}
			conn.SetUser(l)
			ledgers, conns = append(ledgers, l), append(conns, conn)
		}
	}
	tag := uint64(0)
	for range 300 {
		for range r.intn(4) {
			i := r.intn(len(conns))
			tag++
			var err error
			if r.chance(0.5) {
				err = conns[i].Push(w.Now, tag, 8+r.intn(segment/2))
			} else {
				err = conns[i].Pull(w.Now, tag, 8, 8+r.intn(segment/2))
			}
			if err == nil {
				ledgers[i].issued = append(ledgers[i].issued, tag)
			}
		}
		if r.chance(0.02) {
			broken := imp
			broken.Down = r.chance(0.5)
			w.Links[r.intn(2)].Set(broken)
		}
		w.Run(w.Now+falcon.Time(1+r.intn(200))*us, nil)
	}
	w.Run(w.Now+1000*ms, nil)
	for _, c := range conns {
		if c.Info().Outstanding != 0 {
			t.Errorf("outstanding without end: %+v", c.Info())
		}
		c.Close(w.Now)
	}
	w.Step()
	for _, l := range ledgers {
		l.check()
		if !l.closed {
			t.Error("no EvClosed")
		}
	}
	for i := range nodes {
		s := w.Nodes[i].Engine.Stats()
		if s.TxContexts != 0 || s.RxContexts != 0 || s.RxCells != 0 || s.CreditErrors != 0 || s.Conns != 0 || nodes[i].InUse() != (credit.Cost{}) || nodes[i].Underflows() != 0 {
			t.Errorf("node %d left behind: %+v, credits %v", i, *s, nodes[i].InUse())
		}
		if ulps[i].Corrupt != 0 {
			t.Errorf("node %d: %d corrupt payloads", i, ulps[i].Corrupt)
		}
	}
	return sent(w)
}

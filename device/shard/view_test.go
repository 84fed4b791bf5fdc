package shard

import (
	"encoding/binary"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// TestCreditsWithoutALimitAreNotShown checks that `vnic show credits` leaves out zeros and counters
// without a limit.
func TestCreditsWithoutALimitAreNotShown(t *testing.T) {
	c := credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: credit.Unlimited, credit.NetBufRx: 1}
	if got, want := counts(c), map[string]uint32{"req-pkt-tx": 3, "net-buf-rx": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// faulty is a port with a fault that its guest caused.
type faulty struct{ gateway.Device }

func (faulty) Fault() string { return "ring 1: nonsense" }

// TestFaultOfAPort checks that a function's description says why its port does not work.
func TestFaultOfAPort(t *testing.T) {
	v := newPortWorldWith(t, 41, func(int, *config.Config) {})
	s := v.shards[0]
	p := onlyPort(s)
	p.Device = faulty{p.Device}
	if d := s.View().Functions.Describe(p.ID); d.Port == nil || d.Port.Fault != "ring 1: nonsense" {
		t.Errorf("%+v", d.Port)
	}
}

// TestRecordKeepsTheThreadFromSleeping checks that a record that came after the last poll of its
// ring keeps the thread from sleeping.
func TestRecordKeepsTheThreadFromSleeping(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d, _ := interrupted(v, 0)
	d.setUp()
	v.idle(cmDelay)
	s := v.shards[0]
	rung := devicetest.NewBell(t)
	s.guests.Bells.Add(d.b, rung, nil)
	out := &v.outs[0][0]
	s.Step(v.now, &thread.Input{}, out)
	var record [abi.DoorbellSize]byte
	(&abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: d.cqn, Index: ^uint32(0)}).Marshal(record[:])
	if err := rung.Driver.Push(record[:]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := rung.Driver.Publish(); err != nil {
		t.Fatal(err)
	}
	if s.Flush(v.now, out); !out.More {
		t.Error("the thread would wait while a record is there")
	}
	s.Step(v.now, &thread.Input{}, out)
	if s.Flush(v.now, out); out.More {
		t.Error("the thread does not wait when there is nothing to do")
	}
}

// counters queries all counters of a function, with as few commands as possible.
func (d *driver) counters() (list []uint64) {
	d.v.t.Helper()
	for {
		var r abi.Counters
		r.Unmarshal(d.must(abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(list))}))
		for b := r.Values[:]; len(b) > 0; b = b[8:] {
			if list = append(list, binary.LittleEndian.Uint64(b)); len(list) == int(r.Total) {
				return list
			}
		}
	}
}

// TestAFunctionCountsItsOwnOperationsOnly checks that a function's counters count its own operations, in both directions, and
// no other function's (DEV-315).
func TestAFunctionCountsItsOwnOperationsOnly(t *testing.T) {
	v := newVirtual(t, 5, wire100us)
	a, b := pair(v)
	const size = 100_000
	a.send(abi.OpWrite, 0, size, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	a.send(abi.OpRead, 0, 4096, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	at, bt := a.counters(), b.counters()
	if len(at) != int(abi.CounterNotificationsHandled)+1 {
		t.Fatalf("%d counters, want as many as the ABI names", len(at))
	}
	for _, x := range []struct {
		of      []uint64
		counter abi.Counter
		want    uint64
	}{
		{at, abi.CounterTxBytes, size},
		{at, abi.CounterRxBytes, 4096},
		{at, abi.CounterTxReads, 1},
		{at, abi.CounterPosted, 2},
		{at, abi.CounterCompletions, 2},
		{bt, abi.CounterTxBytes, 0},
		{bt, abi.CounterRxBytes, size},
		{bt, abi.CounterRxReads, 1},
		{bt, abi.CounterPosted, 0},
		{bt, abi.CounterCompletions, 0},
		{at, abi.CounterCompletionErrors, 0},
		{bt, abi.CounterRefused, 0},
	} {
		if got := x.of[x.counter]; got != x.want {
			t.Errorf("%s: %d, want %d", x.counter, got, x.want)
		}
	}
	if at[abi.CounterTxPackets] != bt[abi.CounterRxPackets] || at[abi.CounterTxPackets] < size/4096 {
		t.Errorf("%d packets sent, %d received", at[abi.CounterTxPackets], bt[abi.CounterRxPackets])
	}
	if st, _ := a.command(abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(at))}); st != abi.StatusNotFound {
		t.Errorf("behind the last: %s", st)
	}
}

// TestSpeedAndClock checks that a port's speed is that of the uplink, limited by its function's
// rate, that the clock advances, and that completions have its time (DEV-313, DEV-314).
func TestSpeedAndClock(t *testing.T) {
	v := newVirtualWith(t, 5, wire100us, manyVFs)
	a, b := pair(v)
	speed := func() uint64 { return a.fn.Registers().Value(abi.RegSpeed) }
	if speed() != 100_000 {
		t.Errorf("speed %d", speed())
	}
	for rate, want := range map[string]uint64{"25000": 25_000, "400000": 100_000, "0": 100_000} {
		v.mustOperate(0, "pf0.vf1", "", "rate", rate)
		if speed() != want {
			t.Errorf("speed %d with a rate of %s", speed(), rate)
		}
	}
	before := a.fn.Registers().Value(abi.RegClock)
	a.send(abi.OpWrite, 0, 8, b, 0)
	at := a.done().Timestamp
	if now := a.fn.Registers().Value(abi.RegClock); at <= before || at > now {
		t.Errorf("the clock was %d and is %d, a completion of between has the time %d", before, now, at)
	}
}

// TestCountersAreShown checks that everything that the shard's parts count is shown.
func TestCountersAreShown(t *testing.T) {
	counters := newVirtual(t, 1, wire100us).shards[0].Counters()
	for r := range dropReasons {
		if _, ok := counters["drop."+r.String()]; !ok {
			t.Errorf("drops for %s are not shown", r)
		}
	}
	if _, ok := counters["drop.async_event"]; !ok {
		t.Error("connections refused behind a driver are not shown")
	}
	for room, stats := range map[string]any{"rdma": rdma.Stats{}, "falcon": falcon.Stats{}, "gateway": gateway.Stats{}} {
		other := map[string]string{ // shown by another name
			"gateway.tunnel_packets": "gateway.tunnel_tx_packets", "gateway.tunnel_bytes": "gateway.tunnel_tx_bytes",
			"gateway.tunnel_in": "gateway.tunnel_rx_packets", "gateway.tunnel_in_bytes": "gateway.tunnel_rx_bytes",
			"rdma.doorbells": "shard.doorbells",
		}
		typ := reflect.TypeOf(stats)
		for _, field := range reflect.VisibleFields(typ) {
			if k := field.Type.Kind(); k != reflect.Uint64 && k != reflect.Int {
				continue // counted by reason, and shown one by one
			}
			name := room + "." + snake(field.Name)
			if o := other[name]; o != "" {
				name = o
			}
			if _, ok := counters[name]; !ok {
				t.Errorf("%s.Stats.%s is not shown as %s", room, field.Name, name)
			}
		}
	}
}

var capital = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// snake converts RNRTx to rnr_tx.
func snake(name string) string {
	name = strings.NewReplacer("QKeys", "Qkeys", "QPErr", "QpErr", "CQOver", "CqOver", "CIDs", "Cids").Replace(name)
	return strings.ToLower(capital.ReplaceAllString(name, "${1}${3}_${2}${4}"))
}

package shard

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// TestCounters checks that a function's counters count its own operations, in both directions, and
// no other function's (DEV-315).
func TestCounters(t *testing.T) {
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

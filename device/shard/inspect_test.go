package shard

import (
	"maps"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestCreditsThatSaySomething checks that `vnic show credits` leaves out zeros and counters without
// a limit.
func TestCreditsThatSaySomething(t *testing.T) {
	c := credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: credit.Unlimited, credit.NetBufRx: 1}
	if got, want := counts(c), map[string]uint32{"req-pkt-tx": 3, "net-buf-rx": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// faulty is a port with a fault that its guest caused.
type faulty struct{ gateway.Port }

func (faulty) Fault() string { return "ring 1: nonsense" }

// TestFaultOfAPort checks that a function's description says why its port does not work.
func TestFaultOfAPort(t *testing.T) {
	v := newPortWorldWith(t, 41, func(int, *config.Config) {})
	s := v.shards[0]
	p := onlyPort(s)
	p.Port = faulty{p.Port}
	if d := (View{s: s}).Describe(p.ID); d.Port == nil || d.Port.Fault != "ring 1: nonsense" {
		t.Errorf("%+v", d.Port)
	}
}

// TestRecordsBeforeSleep checks that a record that came after the last poll of its ring keeps the
// thread from sleeping.
func TestRecordsBeforeSleep(t *testing.T) {
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

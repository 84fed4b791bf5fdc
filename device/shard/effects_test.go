package shard

import (
	"context"
	"log/slog"
	"runtime"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// watchedPort records each change of its link, and does nothing else.
type watchedPort struct {
	gateway.Port
	tell func()
}

func (watchedPort) USO() bool { return false }

func (p watchedPort) SetLink(bool) error {
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
	onlyPort(s).Port = watchedPort{tell: func() { does("carrier") }}
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

package sim

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
)

// FlowConfig is one connection and what it does: operations one after the other, as many at once as
// allowed, forever.
type FlowConfig struct {
	From, To    int   // hosts
	Pull        bool  // From pulls from To instead of pushing to it
	Ordered     bool  // an ordered connection
	Sizes       []int // bytes of operations, drawn at random
	Outstanding int   // operations at once, 0 = as many as the engine takes
	Start       falcon.Time
}

// Check returns an error naming the first impossible value.
func (f *FlowConfig) Check(hosts int) error {
	switch {
	case f.From < 0 || f.From >= hosts:
		return fmt.Errorf("from: there is no host %d; use 0 to %d", f.From, hosts-1)
	case f.To < 0 || f.To >= hosts || f.To == f.From:
		return fmt.Errorf("to: %d is not another host; use 0 to %d but not %d", f.To, hosts-1, f.From)
	case len(f.Sizes) == 0:
		return fmt.Errorf("sizes: empty; give at least one size in bytes")
	case f.Outstanding < 0 || f.Outstanding > falcon.MaxTxWindow:
		return fmt.Errorf("outstanding: %d is out of range; use 1 to %d, or 0 for as many as fit", f.Outstanding, falcon.MaxTxWindow)
	case f.Start < 0:
		return fmt.Errorf("start: %d ns is negative; use 0 or later", f.Start)
	}
	for _, s := range f.Sizes {
		if s < 1 || s > MTU {
			return fmt.Errorf("sizes: %d is out of range; use 1 to %d bytes: an operation is one packet", s, MTU)
		}
	}
	return nil
}

// flow is a running FlowConfig.
type flow struct {
	cfg         FlowConfig
	start       falcon.Time
	from, to    *endpoint
	rnd         uint64
	outstanding int
	blocked     bool   // the engine refused the next operation until EvCredit
	next        int    // size of the next operation, 0 = not drawn
	received    uint64 // bytes, at the end that gets them
	failed      uint64 // operations
	dead        bool
}

// endpoint is one end of a flow's connection, with what the network knows about its packets.
type endpoint struct {
	flow *flow
	host int
	peer *endpoint
	conn *falcon.Conn

	history history
}

// issue starts operations until the flow or the engine has enough.
func (f *flow) issue(now falcon.Time) {
	for !f.dead && !f.blocked && now >= f.start && (f.cfg.Outstanding == 0 || f.outstanding < f.cfg.Outstanding) {
		if f.next == 0 {
			f.rnd = Mix(f.rnd)
			f.next = f.cfg.Sizes[f.rnd%uint64(len(f.cfg.Sizes))]
		}
		var err error
		if f.cfg.Pull {
			err = f.from.conn.Pull(now, 0, 16, f.next)
		} else {
			err = f.from.conn.Push(now, 0, f.next)
		}
		if err != nil {
			f.blocked = err == falcon.ErrXoff
			f.dead = !f.blocked
			return
		}
		f.outstanding++
		f.next = 0
	}
}

func (e *endpoint) handle(now falcon.Time, ev *falcon.Event) {
	f := e.flow
	switch ev.Kind {
	case falcon.EvPush:
		f.received += uint64(len(ev.Data))
		ev.Conn.AckPush(now, ev.RSN)
	case falcon.EvPull:
		if ev.Conn.RespondPull(now, ev.RSN, 0, ev.Length) != nil {
			f.failed++
		}
	case falcon.EvPushDone, falcon.EvPullDone:
		f.outstanding--
		if ev.Code != falcon.CmplAck {
			f.failed++
		} else if ev.Kind == falcon.EvPullDone {
			f.received += uint64(len(ev.Data))
		}
		f.issue(now)
	case falcon.EvCredit:
		if e == f.from {
			f.blocked = false
			f.issue(now)
		}
	case falcon.EvClosed:
		f.dead = true
	}
}

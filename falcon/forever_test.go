package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestWhatWaitsToBeSentEndsWithWhatIsBeforeIt: a transaction that waits in the connection scheduler
// has no timeout of its own (Falcon §11). The transactions before it in the window expire; then it
// is sent in their place or ends with the connection. So nothing keeps its resources for longer.
func TestWhatWaitsToBeSentEndsWithWhatIsBeforeIt(t *testing.T) {
	const pushes = 100
	for _, profile := range []falcon.Profile{falcon.Software(), falcon.Hardware()} {
		profile.CC = fixed(1, 1) // one packet under way
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) { cfg[0].Profile = profile })
		for i := range p.Links {
			p.Links[i].Set(sim.Impairment{Down: true})
		}
		for tag := range uint64(pushes) {
			p.push(p.a, 100, tag)
		}
		p.run(60_000 * ms)
		sent := map[uint32]bool{}
		for _, s := range p.packets(0, wire.TypePushData) {
			sent[header(t, s.Packet).PSN] = true
		}
		ended := p.events(0, falcon.EvPushDone)
		for _, e := range ended {
			if e.Code == falcon.CmplAck {
				t.Errorf("%s: push %d succeeded", profile.Name, e.Tag)
			}
		}
		if len(ended) != pushes || len(sent) == pushes {
			t.Errorf("%s: %d of %d pushes ended, %d were sent", profile.Name, len(ended), pushes, len(sent))
		}
	}
}

// TestGiveUp: a connection is given up by its own limit, even if the profile's limits are shorter,
// and never if it has none.
func TestGiveUp(t *testing.T) {
	const second = 1000 * ms
	for _, profile := range []falcon.Profile{falcon.Software(), falcon.Hardware()} {
		for _, c := range []struct {
			limit, outage falcon.Time
			survives      bool
		}{
			{falcon.Forever, 500 * second, true},
			{60 * second, 50 * second, true},
			{60 * second, 70 * second, false},
		} {
			if profile.MaxRetransmits > 0 && c.limit != falcon.Forever {
				continue // it counts attempts
			}
			p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
				for i := range cfg {
					cfg[i].Profile = profile
				}
				conn.GiveUp = c.limit
			})
			for i := range p.Links {
				p.Links[i].Set(sim.Impairment{Down: true})
			}
			p.push(p.a, 100, 1)
			p.run(c.outage)
			for i := range p.Links {
				p.Links[i].Set(sim.Impairment{})
			}
			p.run(30 * second)
			done, code := 0, falcon.Completion(0)
			for _, e := range p.ulp[0].Events {
				if e.Kind == falcon.EvPushDone {
					done, code = done+1, e.Code
				}
			}
			if done != 1 || (code == falcon.CmplAck) != c.survives {
				t.Errorf("limit %d s, outage %d s: %d completions, the last one %v", c.limit/second, c.outage/second, done, code)
			}
		}
	}
}

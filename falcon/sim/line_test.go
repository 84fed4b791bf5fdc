package sim

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
)

// pass sends frames of 1000 bytes a microsecond apart over a line of host 0 and returns which
// arrive, in order.
func pass(t *testing.T, frames int, edit func(*NetworkConfig)) (arrived []uint32) {
	t.Helper()
	n := network(t, edit)
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	l := n.Hosts[0].line
	for i := range frames {
		n.Now += 1000
		l.occupy(1000)
		l.send(frame(n, f, 1000, uint32(i)))
	}
	for len(n.events.heap) > 0 {
		if ev := n.events.pop(); ev.kind == atSwitch {
			arrived = append(arrived, ev.packet.psn)
		}
	}
	return arrived
}

// TestLossesComeInConfiguredBursts: losses come in bursts, with the configured probabilities.
func TestLossesComeInConfiguredBursts(t *testing.T) {
	const frames = 200000
	got := pass(t, frames, func(c *NetworkConfig) { c.Burst = Burst{Enter: 0.01, Leave: 0.1, Loss: 0.5} })
	lost := frames - len(got)
	if want := 0.5 * 0.01 / 0.11 * frames; float64(lost) < 0.9*want || float64(lost) > 1.1*want {
		t.Errorf("%d of %d frames lost, want about %.0f", lost, frames, want)
	}
	pairs, last := 0, -1
	missing := func(i int) {
		if i == last+1 {
			pairs++
		}
		last = i
	}
	next := uint32(0)
	for _, psn := range got {
		for ; next < psn; next++ {
			missing(int(next))
		}
		next = psn + 1
	}
	// After a loss the link is bad; the next frame is lost if it stays so, 0.9 · 0.5.
	if share := float64(pairs) / float64(lost); share < 0.40 || share > 0.50 {
		t.Errorf("after %.2f of the losses the next frame was lost too, want about 0.45", share)
	}
}

func TestTheConfiguredShareOfFramesComesTwice(t *testing.T) {
	const frames = 20000
	got := pass(t, frames, func(c *NetworkConfig) { c.Duplicate = 0.1 })
	if twice := len(got) - frames; twice < frames/12 || twice > frames/8 {
		t.Errorf("%d of %d frames came twice, want a tenth", twice, frames)
	}
}

// TestDuplicatesAreNotSpurious: copies made by the network do not count as the sender's.
func TestDuplicatesAreNotSpurious(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Duplicate = 0.2 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Ordered: true, Sizes: []int{4096}})
	n.Run(n.Now + 2e6)
	if s := f.from.history.tally; s.first < 1000 || s.again != 0 || s.spurious != 0 || s.lost != 0 {
		t.Errorf("%+v", s)
	}
	if f.failed != 0 {
		t.Errorf("%d operations failed", f.failed)
	}
}

func TestFramesSentDuringAnOutageAreLost(t *testing.T) {
	got := pass(t, 3000, func(c *NetworkConfig) { c.Outage, c.OutageEvery = 200e3, 1e6 })
	if len(got) != 2400 {
		t.Errorf("%d of 3000 frames of 3 ms came, want 2400: four fifths of each", len(got))
	}
}

func TestEachDirectionOfALinkHasItsOwnFaults(t *testing.T) {
	n := network(t, func(c *NetworkConfig) {
		c.Hosts, c.Loss = 4, 0.25
		c.Links = []HostLinks{{Host: 1, Count: 2, Up: LinkConfig{Rate: 1e9, Delay: 5000}, Down: LinkConfig{Delay: 7000}}}
	})
	for i := range 4 {
		up, down := n.Hosts[i].line.cfg, n.Ports[i].line.cfg
		other := i == 1 || i == 2
		if (up.Rate == 1e9) != other || (up.Delay == 5000) != other || (up.Loss == 0.25) == other || (down.Delay == 7000) != other || down.Rate != 100e9 {
			t.Errorf("host %d: up %+v, down %+v", i, up, down)
		}
	}
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	n.forward(frame(n, f, 1250, 0))
	arrivals := 0
	for len(n.events.heap) > 0 {
		ev := n.events.pop()
		if ev.kind != atHost {
			continue
		}
		arrivals++
		if want := n.Now + 100 + n.hop() + 7000; ev.at != want {
			t.Errorf("arrives %d ns off", ev.at-want)
		}
	}
	if arrivals != 1 {
		t.Errorf("%d arrivals", arrivals)
	}
}

// TestMixIsSplitMix64: Mix is the generator splitmix64 of Steele, Lea and Flood, whose state is the
// argument. These are its first numbers from state 0 on.
func TestMixIsSplitMix64(t *testing.T) {
	state := uint64(0)
	for _, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := Mix(state); got != want {
			t.Errorf("%#x, want %#x", got, want)
		}
		state += 0x9e3779b97f4a7c15
	}
}

// TestALineWithoutFaultsChangesNothing: a line without faults loses, repeats and reorders nothing.
func TestALineWithoutFaultsChangesNothing(t *testing.T) {
	got := pass(t, 5000, func(*NetworkConfig) {})
	for i, psn := range got {
		if psn != uint32(i) {
			t.Fatalf("frame %d arrives as number %d", psn, i)
		}
	}
	if len(got) != 5000 {
		t.Errorf("%d of 5000 frames arrive", len(got))
	}
}

// TestAHeldFrameThatNoneFollowsIsSentInTheEnd: a frame that is held back, and that no other
// follows, is sent after a round trip without traffic on the line, or after a microsecond if that
// is more.
func TestAHeldFrameThatNoneFollowsIsSentInTheEnd(t *testing.T) {
	for _, rtt := range []falcon.Time{10000, 100} {
		for _, other := range []falcon.Time{0, 600} { // another frame goes that much later, and is held too
			n := network(t, func(c *NetworkConfig) { c.Reorder, c.ReorderBy, c.RTT = 1, 64, rtt })
			f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
			l := n.Hosts[0].line
			send := func(psn uint32) {
				l.occupy(1250) // 100 ns
				l.send(frame(n, f, 1250, psn))
			}
			start := n.Now
			send(1)
			if len(l.held) != 1 {
				t.Skip("not held for long enough under this seed")
			}
			if other > 0 {
				n.Now += other
				send(2)
			}
			var at []falcon.Time
			for len(at) < 1+int(min(other, 1)) && len(n.events.heap) > 0 {
				ev := n.events.pop()
				n.Now = max(n.Now, ev.at)
				switch ev.kind {
				case holdOver:
					n.lines[ev.host].releaseAll()
				case atSwitch:
					at = append(at, ev.at)
				}
			}
			want := start + other + 100 + max(rtt, 1000) + rtt/4
			for _, got := range at {
				if got != want {
					t.Errorf("round trip %d, another frame after %d: arrives at %d, want %d", rtt, other, got-start, want-start)
				}
			}
			if len(at) == 0 || len(l.held) != 0 {
				t.Errorf("%d frames arrived, %d are held", len(at), len(l.held))
			}
		}
	}
}

// TestAnOutageIsTheEndOfEachPeriod: the outage is the end of each period, from its first nanosecond
// to its last.
func TestAnOutageIsTheEndOfEachPeriod(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Outage, c.OutageEvery = 200, 1000 })
	l := n.Hosts[0].line
	for at, lost := range map[int64]bool{0: false, 799: false, 800: true, 999: true, 1000: false, 1799: false, 1800: true, 1999: true, 2000: false} {
		l.busy = at * picos
		if got := l.loses(0); got != lost {
			t.Errorf("at %d ns: lost %v", at, got)
		}
	}
}

package sim

import (
	"testing"
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

// TestBurst: losses come in bursts, with the configured probabilities.
func TestBurst(t *testing.T) {
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

func TestDuplicate(t *testing.T) {
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

func TestOutage(t *testing.T) {
	got := pass(t, 3000, func(c *NetworkConfig) { c.Outage, c.OutageEvery = 200e3, 1e6 })
	if len(got) != 2400 {
		t.Errorf("%d of 3000 frames of 3 ms came, want 2400: four fifths of each", len(got))
	}
}

// TestLinks: each direction of each link has its own faults.
func TestLinks(t *testing.T) {
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

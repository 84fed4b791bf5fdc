package ports

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// loopPort is one port: its device, and what the shard knows of it.
type loopPort struct {
	dev    Device
	port   *shard.Port
	number int32
	polled Polled       // nil: its device tells of each frame
	awake  bool         // it is in the list of polledPorts
	dirty  bool         // the same
	idle   int          // times that it was looked at for nothing
	paused timer.Handle // armed: nothing is read until then, the function has sent what it may
}

// idleLooks is how often a guest is looked at for nothing before it is to tell of its next frame,
// while others keep the thread busy.
const idleLooks = 256

// polledPorts are the ports of a set whose guests are looked at.
type polledPorts struct {
	awake []*loopPort // are looked at without being told
	first int         // of awake, where to begin if not all have a turn
	dirty []*loopPort // those that were written to and not settled
}

// turns puts the ports that are looked at now into list, as many as it has room for, and returns how
// many that are. All have their turn.
func (ps *polledPorts) turns(list []*loopPort) int {
	n := min(len(ps.awake), len(list))
	for i := range n {
		list[i] = ps.awake[(ps.first+i)%len(ps.awake)]
	}
	if n < len(ps.awake) {
		ps.first = (ps.first + n) % len(ps.awake)
	}
	return n
}

// rouse has a guest looked at.
func (ps *polledPorts) rouse(p *loopPort) {
	p.polled.Wake()
	p.idle = 0
	if !p.awake {
		p.awake = true
		ps.awake = append(ps.awake, p)
	}
}

// doze has a guest looked at no longer.
func (ps *polledPorts) doze(p *loopPort) {
	if p.awake {
		p.awake = false
		ps.awake = slices.DeleteFunc(ps.awake, func(o *loopPort) bool { return o == p })
	}
}

// looked takes whether a guest that was looked at had frames.
func (ps *polledPorts) looked(p *loopPort, had bool) {
	if had {
		p.idle = 0
		p.polled.Settle()
		return
	}
	if p.idle++; p.idle >= idleLooks && !p.polled.Arm() {
		ps.doze(p)
	}
}

// arm has all guests tell from now on, but those that have frames already: there are some.
func (ps *polledPorts) arm() (waiting bool) {
	ps.awake = slices.DeleteFunc(ps.awake, func(p *loopPort) bool {
		if p.polled.Arm() {
			waiting = true
			return false
		}
		p.awake = false
		return true
	})
	return waiting
}

// noted is a Polled as the gateway writes to it.
type noted struct {
	Device
	of  *loopPort
	all *polledPorts
}

// Write implements gateway.Port.
func (n noted) Write(parts [][]byte, off gateway.Offload) bool {
	if !n.of.dirty {
		n.of.dirty = true
		n.all.dirty = append(n.all.dirty, n.of)
	}
	return n.Device.Write(parts, off)
}

// settle shows guests what they were given.
func (ps *polledPorts) settle() {
	for _, p := range ps.dirty {
		p.dirty = false
		p.polled.Settle()
	}
	ps.dirty = ps.dirty[:0]
}

package ports

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// loopPort is one port: its device, and what the shard knows of it.
type loopPort struct {
	dev    Device
	port   *shard.Port
	number int32
	flow   fair.Flow[loopPort] // its share of what is read
	had    bool                // frames in this turn
	more   bool                // was not read to the end when it was read last
	polled Polled              // nil: its device tells of each frame
	awake  bool                // it is in the list of polledPorts
	owes   bool                // the same
	dirty  bool                // the same
	idle   int                 // times that it was looked at for nothing
	paused timer.Handle        // armed: nothing is read until then, the function has sent what it may
}

// idleLooks is how often a guest is looked at for nothing before it is to tell of its next frame,
// while others keep the thread busy.
const idleLooks = 256

// polledPorts are the ports of a set whose guests are looked at.
type polledPorts struct {
	awake []*loopPort // are looked at without being told
	first int         // of awake, where to begin if not all have a turn
	owes  []*loopPort // those that were read, and whose guests have it in their memory still
	dirty []*loopPort // those that were written to and not settled
}

// turns puts the ports that are looked at now into list, as many as it has room for, and returns
// how many that are. All have their turn.
func (ps *polledPorts) turns(list []*loopPort) int {
	n := min(len(ps.awake), len(list))
	for i := range n {
		list[i] = ps.awake[(ps.first+i)%len(ps.awake)]
	}
	if n > 0 {
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
		if !p.owes {
			p.polled.Settle()
		}
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

// owe notes that a guest is to get something back.
func (ps *polledPorts) owe(p *loopPort) {
	if !p.owes {
		p.owes = true
		ps.owes = append(ps.owes, p)
	}
}

// leave has a port looked at no longer, whose device goes: so what is left in its guest's memory is
// copied now.
func (ps *polledPorts) leave(p *loopPort) {
	ps.doze(p)
	if p.owes {
		p.owes = false
		ps.owes = slices.DeleteFunc(ps.owes, func(o *loopPort) bool { return o == p })
		p.polled.Return()
	}
}

// noted is a Polled as the gateway writes to it.
type noted struct {
	Polled
	of  *loopPort
	all *polledPorts
}

func (n noted) note() {
	if !n.of.dirty {
		n.of.dirty = true
		n.all.dirty = append(n.all.dirty, n.of)
	}
}

// Write implements gateway.Port.
func (n noted) Write(parts [][]byte, off gateway.Offload) bool {
	n.note()
	return n.Polled.Write(parts, off)
}

// WriteWith implements gateway.Gatherer.
func (n noted) WriteWith(head []byte, rest gateway.Rest, off gateway.Offload) bool {
	n.note()
	return n.Polled.WriteWith(head, rest, off)
}

// settle shows guests what they were given, after all senders have back what it was made of:
// whoever is killed in between has lost frames, and does not send them twice.
func (ps *polledPorts) settle() {
	for _, p := range ps.owes {
		p.owes = false
		p.polled.Return()
	}
	ps.owes = ps.owes[:0]
	for _, p := range ps.dirty {
		p.dirty = false
		p.polled.Settle()
	}
	ps.dirty = ps.dirty[:0]
}

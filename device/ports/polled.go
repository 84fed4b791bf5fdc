package ports

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// servedPort is one port in a Set: its device, and the shard's Port.
type servedPort struct {
	dev    Device
	port   *shard.Port
	number int32
	flow   fair.Flow[servedPort] // its share of what is read
	had    bool                  // it has frames in this turn
	more   bool                  // it was not read to the end the last time
	polled Polled                // nil: its device signals each frame
	awake  bool                  // it is in polledPorts.awake
	owes   bool                  // it is in polledPorts.owes
	dirty  bool                  // it is in polledPorts.dirty
	idle   int                   // number of polls in a row without a frame
	paused timer.Handle          // armed: nothing is read until then, because the function has used up its rate
}

// idleLooks is the number of polls without a frame after which a guest is asked to signal, while
// other work keeps the thread busy.
const idleLooks = 256

// polledPorts holds the polled ports of a set.
type polledPorts struct {
	awake []*servedPort // ports that are polled
	first int           // index in awake at which the next turn begins
	owes  []*servedPort // ports that were read and whose guests wait to get their buffers back
	dirty []*servedPort // ports that were written to and not settled
}

// turns puts the ports to be polled now into list, as many as fit, and returns their number. All
// ports get their turn.
func (ps *polledPorts) turns(list []*servedPort) int {
	n := min(len(ps.awake), len(list))
	for i := range n {
		list[i] = ps.awake[(ps.first+i)%len(ps.awake)]
	}
	if n > 0 {
		ps.first = (ps.first + n) % len(ps.awake)
	}
	return n
}

// startPolling starts polling a guest.
func (ps *polledPorts) startPolling(p *servedPort) {
	p.polled.Wake()
	p.idle = 0
	if !p.awake {
		p.awake = true
		ps.awake = append(ps.awake, p)
	}
}

// stopPolling stops polling a guest.
func (ps *polledPorts) stopPolling(p *servedPort) {
	if p.awake {
		p.awake = false
		ps.awake = slices.DeleteFunc(ps.awake, func(o *servedPort) bool { return o == p })
	}
}

// looked records whether a polled guest had frames.
func (ps *polledPorts) looked(p *servedPort, had bool) {
	if had {
		p.idle = 0
		if !p.owes {
			p.polled.Settle()
		}
		return
	}
	if p.idle++; p.idle >= idleLooks && !p.polled.Arm() {
		ps.stopPolling(p)
	}
}

// arm asks all guests to signal, except those that have frames already. It reports whether there
// are such.
func (ps *polledPorts) arm() (waiting bool) {
	ps.awake = slices.DeleteFunc(ps.awake, func(p *servedPort) bool {
		if p.polled.Arm() {
			waiting = true
			return false
		}
		p.awake = false
		return true
	})
	return waiting
}

// owe records that a guest waits to get buffers back.
func (ps *polledPorts) owe(p *servedPort) {
	if !p.owes {
		p.owes = true
		ps.owes = append(ps.owes, p)
	}
}

// leave stops polling a port that is being removed. It copies what is still needed from its guest's
// memory now.
func (ps *polledPorts) leave(p *servedPort) {
	ps.stopPolling(p)
	if p.owes {
		p.owes = false
		ps.owes = slices.DeleteFunc(ps.owes, func(o *servedPort) bool { return o == p })
		p.polled.Return()
	}
}

// noted is a Polled that records writes of the gateway.
type noted struct {
	Polled
	of  *servedPort
	all *polledPorts
}

func (n noted) note() {
	if !n.of.dirty {
		n.of.dirty = true
		n.all.dirty = append(n.all.dirty, n.of)
	}
}

// Write implements gateway.Device.
func (n noted) Write(parts [][]byte, off gateway.Offload) bool {
	n.note()
	return n.Polled.Write(parts, off)
}

// WriteWith implements gateway.Gatherer.
func (n noted) WriteWith(head []byte, rest gateway.Rest, off gateway.Offload) bool {
	n.note()
	return n.Polled.WriteWith(head, rest, off)
}

// settle returns read buffers to all senders and then shows guests what was written: if the process
// is killed in between, frames are lost, but none is sent twice.
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

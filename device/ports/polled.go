package ports

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/tap"
)

// Polled is a Device whose guest is looked at while it is busy, instead of telling of each frame, and
// which is told of what was done for many frames at once.
type Polled interface {
	Device
	// Wake says that the guest is looked at: it need not tell.
	Wake()
	// Arm says that it is to tell from now on. It reports true, and nothing changes, if there is a
	// frame already.
	Arm() (waiting bool)
	// Settle shows the guest what was read and written since.
	Settle()
}

// idleLooks is how often a guest is looked at for nothing before it is to tell of its next frame,
// while others keep the thread busy.
const idleLooks = 256

// look returns the ports that may have frames: those that told, and those that are awake.
func (ps *Set) look() []*loopPort {
	n := 0
	for _, e := range ps.events[:tap.Ready(ps.epoll, ps.events[:])] {
		p := ps.ports[e.Fd]
		if p.polled != nil {
			ps.rouse(p)
			continue
		}
		ps.ready[n] = p
		n++
	}
	turns := min(len(ps.awake), len(ps.ready)-n)
	for i := range turns {
		ps.ready[n+i] = ps.awake[(ps.first+i)%len(ps.awake)]
	}
	if turns < len(ps.awake) { // all have their turn
		ps.first = (ps.first + turns) % len(ps.awake)
	}
	n += turns
	return ps.ready[:n]
}

// rouse has a guest looked at.
func (ps *Set) rouse(p *loopPort) {
	p.polled.Wake()
	p.idle = 0
	if !p.awake {
		p.awake = true
		ps.awake = append(ps.awake, p)
	}
}

// doze has a guest looked at no longer.
func (ps *Set) doze(p *loopPort) {
	if p.awake {
		p.awake = false
		ps.awake = slices.DeleteFunc(ps.awake, func(o *loopPort) bool { return o == p })
	}
}

// looked takes whether a guest that was looked at had frames.
func (ps *Set) looked(p *loopPort, had bool) {
	if had {
		p.idle = 0
		p.polled.Settle()
		return
	}
	if p.idle++; p.idle >= idleLooks && !p.polled.Arm() {
		ps.doze(p)
	}
}

// Arm implements thread.Ports.
func (ps *Set) Arm() (waiting bool) {
	if len(ps.awake) == 0 || ps.of.Busy() {
		return false
	}
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
	set *Set
}

// Write implements gateway.Port.
func (n noted) Write(parts [][]byte, off gateway.Offload) bool {
	if !n.of.dirty {
		n.of.dirty = true
		n.set.dirty = append(n.set.dirty, n.of)
	}
	return n.Device.Write(parts, off)
}

// settle shows guests what they were given.
func (ps *Set) settle() {
	for _, p := range ps.dirty {
		p.dirty = false
		p.polled.Settle()
	}
	ps.dirty = ps.dirty[:0]
}

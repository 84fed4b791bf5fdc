package tcp

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/falcon-vnic/vnic/device/handover"
)

// A fault is a panic within gVisor, in a call of the pump or in a timer. Locks may stay held then, so the
// whole netstack is given up: its connections are lost, and a new one takes its place, with the same
// functions and listeners. gVisor's own goroutines cannot be guarded: a panic there ends the process. They
// handle the segments by which connections are made, and now and then others.

// maxFaults is how many netstacks are given up. What they hold may never be freed, so the next fault ends the
// process.
const maxFaults = 16

// guarded runs something that calls gVisor.
func (p *pump) guarded(f func()) {
	defer func() {
		if v := recover(); v != nil {
			p.renew(describe(v))
		}
	}()
	f()
}

// describe returns what is told of a fault: the value, and where.
func describe(v any) string {
	const most = 4000
	text := fmt.Sprintf("%v\n%s", v, debug.Stack())
	return text[:min(len(text), most)]
}

// clock is that of a netstack. It notes faults in timers.
type clock struct {
	tcpip.Clock
	p     *pump
	fault atomic.Pointer[string] // the first one
}

// AfterFunc implements tcpip.Clock.
func (c *clock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	return c.Clock.AfterFunc(d, func() {
		defer func() {
			if v := recover(); v != nil {
				why := describe(v)
				c.fault.CompareAndSwap(nil, &why)
				c.p.rings.bell.ring()
			}
		}()
		f()
	})
}

// renew replaces a netstack that had a fault.
func (p *pump) renew(why string) {
	if p.faults++; p.faults > maxFaults {
		panic(why)
	}
	go end(p.net)
	clear(p.held)
	p.held = p.held[:0]
	for _, st := range p.streams {
		if st.over {
			delete(p.streams, st.id)
		}
		if st.f != nil {
			st.f.forget(st)
			st.f = nil
		}
		st.finish(eventLost, "TCP had a fault")
	}
	before := p.functions
	p.functions = map[uint32]*function{}
	p.begin()
	for id, f := range before {
		f.given.Store(true)
		p.add(id, f.addr, int(f.mtu))
		for port, l := range f.listeners {
			l.ep = nil
			p.listen(p.functions[id], id, port)
		}
	}
	p.again(&fault{p: p, why: why})
	p.rings.bell.ring()
}

// end ends a netstack, as far as its locks let it.
func end(net *stack.Stack) {
	defer func() { _ = recover() }()
	net.Destroy()
}

// fault is news for the shard.
type fault struct {
	p        *pump
	isMarked bool // guarded by p.mu
	why      string
}

var _ served = (*fault)(nil)

func (f *fault) mark() *bool { return &f.isMarked }

func (f *fault) serve() { f.p.tell(f, &handover.Header{Kind: eventFault}, []byte(f.why)) }

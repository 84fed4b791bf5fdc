package tcp

import (
	"fmt"
	"runtime/debug"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// A fault is a panic within gVisor, in a call or in a timer. Locks may stay held then, so the whole
// netstack is given up: its connections are lost, and a new one takes its place, with the same
// functions and listeners.

// maxFaults is how many netstacks are given up. What they hold may never be freed, so the next fault ends the
// process.
const maxFaults = 16

// guarded runs something that calls gVisor, if that is there. It reports whether there was no fault.
func (s *Stack) guarded(f func()) (ok bool) {
	if s.plays {
		return true
	}
	defer func() {
		if v := recover(); v != nil {
			s.renew(describe(v))
		}
	}()
	f()
	return true
}

// describe returns what is told of a fault: the value, and where.
func describe(v any) string {
	const most = 4000
	text := fmt.Sprintf("%v\n%s", v, debug.Stack())
	return text[:min(len(text), most)]
}

// renew replaces a netstack that had a fault.
func (s *Stack) renew(why string) {
	if s.faults++; s.faults > maxFaults {
		panic(why)
	}
	go end(s.net)
	s.held = held{}
	for st := range s.streams {
		if st.over {
			delete(s.streams, st)
		}
		if st.f != nil {
			st.f.forget(st)
			st.f = nil
		}
		st.finish(Lost, "TCP had a fault")
	}
	before := s.functions
	s.functions = map[uint32]*function{}
	s.begin(s.clock.read())
	for id, f := range before {
		f.given.Store(true)
		s.add(id, f.addr, int(f.mtu))
		for port, l := range f.listeners {
			l.ep = nil
			s.listen(s.functions[id], id, port)
		}
	}
	s.again(&fault{why: why})
}

// end ends a netstack, as far as its locks let it.
func end(net *stack.Stack) {
	defer func() { _ = recover() }()
	net.Destroy()
}

// fault is news for the shard.
type fault struct {
	isMarked, told bool
	why            string
}

var _ served = (*fault)(nil)

func (f *fault) mark() *bool { return &f.isMarked }

func (f *fault) serve() (Event, bool) {
	news := !f.told
	f.told = true
	return Event{Kind: Fault, Why: f.why}, news
}

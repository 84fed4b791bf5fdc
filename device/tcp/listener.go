package tcp

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// listener accepts the connections that peers make to a port of a function.
type listener struct {
	s        *Stack
	f        *function
	number   uint32 // of the function
	port     uint16
	ep       tcpip.Endpoint
	queue    waiter.Queue
	entry    waiter.Entry
	isMarked bool   // guarded by Stack.mu
	why      string // why it failed, which is still to be told; "": it did not, or that was told
}

var _ served = (*listener)(nil)

func (l *listener) mark() *bool { return &l.isMarked }

// NotifyEvent implements waiter.EventListener.
func (l *listener) NotifyEvent(waiter.EventMask) { l.s.again(l) }

// listen lets peers call a function at a port. Half-open connections beyond Backlog are not
// remembered: gVisor answers with SYN cookies.
func (s *Stack) listen(f *function, number uint32, port uint16) {
	l := &listener{s: s, f: f, number: number, port: port}
	s.again(l)
	switch {
	case f == nil:
		l.why = "the function has no address"
	case port == 0:
		l.why = "0 is not a port"
	case f.listeners[port] != nil:
		l.why = fmt.Sprintf("the function listens at port %d already", port)
	case len(f.listeners) == s.limits.Listeners:
		l.why = fmt.Sprintf("the function listens at %d ports, as many as it may", len(f.listeners))
	default:
		ep, err := f.bound(port, &l.queue)
		if err == nil {
			if err = ep.Listen(s.limits.Backlog); err != nil {
				ep.Close()
			}
		}
		if err != nil {
			l.why = err.String()
			return
		}
		l.ep = ep
		l.entry.Init(l, waiter.ReadableEvents)
		l.queue.EventRegister(&l.entry)
		f.listeners[port] = l
	}
}

// end ends the listener. gVisor resets the connections that wait to be accepted.
func (l *listener) end() {
	l.queue.EventUnregister(&l.entry)
	l.ep.Close()
	delete(l.f.listeners, l.port)
	l.ep = nil
}

// serve accepts connections that found no room before.
func (l *listener) serve() (Event, bool) {
	if why := l.why; why != "" {
		l.why = ""
		return Event{Kind: Unlistened, Function: l.number, Port: l.port, Why: why}, true
	}
	l.accept()
	return Event{}, false
}

// accept accepts connections, as many as the function may have. The others wait, and hold the listener's backlog.
func (l *listener) accept() {
	for l.ep != nil && l.ep.Readiness(waiter.ReadableEvents) != 0 && l.f.hasRoom() {
		var peer tcpip.FullAddress
		ep, queue, err := l.ep.Accept(&peer)
		if err != nil {
			break
		}
		st := l.s.newStream(l.number)
		st.f, st.queue, st.called = l.f, queue, l.port
		st.begin(ep)
		st.enter(netip.AddrPortFrom(netipAddr(peer.Addr), peer.Port))
		l.s.again(st)
	}
}

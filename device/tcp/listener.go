package tcp

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/falcon-vnic/vnic/device/handover"
)

// listener accepts the connections that peers make to a port of a function.
type listener struct {
	p        *pump
	f        *function
	number   uint32 // of the function
	port     uint16
	ep       tcpip.Endpoint
	queue    waiter.Queue
	entry    waiter.Entry
	isMarked bool   // guarded by p.mu
	why      string // it failed, which is to be told
}

var _ served = (*listener)(nil)

func (l *listener) mark() *bool { return &l.isMarked }

// NotifyEvent implements waiter.EventListener.
func (l *listener) NotifyEvent(waiter.EventMask) { l.p.happened(l) }

// listen lets peers call a function at a port. Half-open connections beyond Backlog are not
// remembered: gVisor answers with SYN cookies.
func (p *pump) listen(f *function, number uint32, port uint16) {
	l := &listener{p: p, f: f, number: number, port: port}
	p.again(l)
	switch {
	case f == nil:
		l.why = "the function has no address"
	case port == 0:
		l.why = "0 is no port"
	case f.listeners[port] != nil:
		l.why = fmt.Sprintf("the function listens at port %d already", port)
	case len(f.listeners) == p.limits.Listeners:
		l.why = fmt.Sprintf("the function listens at %d ports, as many as it may", len(f.listeners))
	default:
		ep, err := f.bound(port, &l.queue)
		if err == nil {
			if err = ep.Listen(p.limits.Backlog); err != nil {
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

// serve accepts connections, as many as the function may have. The others wait, and hold the
// listener's backlog.
func (l *listener) serve() {
	if l.why != "" {
		l.p.tell(l, &handover.Header{Kind: eventUnlistened, Flow: l.number, B: uint32(l.port)}, []byte(l.why))
		return
	}
	for l.ep != nil && l.f.conns < l.p.limits.Conns {
		var peer tcpip.FullAddress
		ep, queue, err := l.ep.Accept(&peer)
		if err != nil {
			return
		}
		l.p.number += 2
		st := &stream{p: l.p, f: l.f, number: l.number, id: l.p.number, queue: queue, called: l.port, window: l.p.limits.Buffer}
		l.p.streams[st.id] = st
		st.begin(ep)
		st.enter(netip.AddrPortFrom(netipAddr(peer.Addr), peer.Port))
		l.p.again(st)
	}
}

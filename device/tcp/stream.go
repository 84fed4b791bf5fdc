package tcp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/falcon-vnic/vnic/device/handover"
)

// stream is the pump's side of a connection.
//
//	opening ─▶ open ─▶ (ending) ─▶ over: the last event is told ─▶ removed: gVisor has forgotten it, too
type stream struct {
	p        *pump
	f        *function // nil: the connection was never begun
	number   uint32    // of the function
	id       uint32
	ep       tcpip.Endpoint
	queue    *waiter.Queue
	entry    waiter.Entry
	isMarked bool // guarded by p.mu
	flow     flow

	called uint16 // the port at which a peer called; 0: this end called
	open   bool   // Connected or Incoming is told
	eof    bool   // PeerClosed is told
	over   bool
	last   handover.Kind // the last event, which is to be told; 0: none yet
	why    string

	pending []byte // written, and not yet taken by gVisor
	written uint64
	shut    bool   // no more will be written
	ending  bool   // the shard has closed it
	closed  bool   // and gVisor was told
	fin     bool   // gVisor was told that no more will be written
	window  int    // bytes that the shard may be given
	unread  []byte // read from gVisor, for which the ring had no room
	told    uint64

	base  atomic.Uint64 // sequence number of the first byte, and 1<<32; 0: not known yet
	acked uint64        // bytes that the peer's TCP has acknowledged; FIN counts as one
}

var _ served = (*stream)(nil)

func (st *stream) mark() *bool { return &st.isMarked }

// NotifyEvent implements waiter.EventListener.
func (st *stream) NotifyEvent(waiter.EventMask) { st.p.happened(st) }

// connect begins a connection to a peer, from a local port; 0: any.
func (p *pump) connect(f *function, number, id uint32, from uint16, to netip.AddrPort) {
	st := &stream{p: p, number: number, id: id, window: p.limits.Buffer}
	p.streams[id] = st
	p.again(st)
	switch {
	case f == nil:
		st.fail("the function has no address")
	case to.Addr().Is4() != f.addr.Is4():
		st.fail(fmt.Sprintf("%s is of another family than the function's address %s", to.Addr(), f.addr))
	case f.conns == p.limits.Conns:
		st.fail(fmt.Sprintf("the function has %d connections, as many as it may", f.conns))
	default:
		st.f = f
		st.queue = &waiter.Queue{}
		ep, err := f.bound(from, st.queue)
		if err != nil {
			st.fail(err.String())
			return
		}
		st.begin(ep)
		err = ep.Connect(tcpip.FullAddress{NIC: f.nic(), Addr: tcpAddr(to.Addr()), Port: to.Port()})
		if _, started := err.(*tcpip.ErrConnectStarted); err != nil && !started {
			st.finish(eventLost, err.String())
			return
		}
		st.enter(to)
	}
}

// fail ends a connection that never began.
func (st *stream) fail(why string) {
	st.f = nil
	st.finish(eventLost, why)
}

// begin makes the stream one of the function's, with its endpoint.
func (st *stream) begin(ep tcpip.Endpoint) {
	st.ep = ep
	st.f.conns++
	st.p.counts.conns.Add(1)
	o := ep.SocketOptions()
	o.SetDelayOption(false)
	timeout := tcpip.TCPUserTimeoutOption(giveUp)
	_ = ep.SetSockOpt(&timeout)
	st.entry.Init(st, waiter.AllEvents)
	st.queue.EventRegister(&st.entry)
}

// enter lets segments of a peer find the stream. The local port is known now.
func (st *stream) enter(peer netip.AddrPort) {
	local, _ := st.ep.GetLocalAddress()
	st.flow = flow{local.Port, peer}
	st.f.enter(st)
}

// write takes bytes of the shard.
func (st *stream) write(b []byte) {
	if st.shut || st.last != 0 {
		return
	}
	st.written += uint64(len(b))
	if len(st.pending) == 0 {
		b = b[st.push(b):]
	}
	if len(b) > 0 {
		st.pending = append(st.pending, b...)
		st.p.again(st)
	}
}

// push gives gVisor bytes, as many as it takes, and returns their number.
func (st *stream) push(b []byte) (n int) {
	if !st.open {
		return 0
	}
	r := bytes.NewReader(b)
	took, _ := st.ep.Write(r, tcpip.WriteOptions{}) // of errors, reading says more
	return int(took)
}

// serve tells the shard what it can be told, and gives gVisor what it takes.
func (st *stream) serve() {
	if st.over {
		st.leave()
		return
	}
	if st.last == 0 {
		st.progress()
	}
	if st.last == 0 {
		return
	}
	if !st.tell(st.last, 0, []byte(st.why)) {
		return
	}
	st.over, st.pending, st.unread = true, nil, nil
	if st.f != nil {
		st.ep.Close()
	}
	st.leave()
}

// leave forgets a stream that is over, when gVisor has forgotten it. Until then it counts.
func (st *stream) leave() {
	if st.p.streams[st.id] != st {
		return
	}
	if st.f != nil {
		switch tcp.EndpointState(st.ep.State()) {
		case tcp.StateClose, tcp.StateError, tcp.StateInitial, tcp.StateBound:
		default:
			if !st.p.isLeaving {
				st.p.isLeaving = true
				st.p.leaving.Reset(lingerTime)
			}
			return
		}
		st.queue.EventUnregister(&st.entry)
		st.f.forget(st)
	}
	delete(st.p.streams, st.id)
}

// expire forgets streams that gVisor has forgotten since.
func (p *pump) expire() {
	p.isLeaving = false
	for _, st := range p.streams {
		if st.over {
			st.leave()
		}
	}
}

func (st *stream) progress() {
	if !st.open && !st.opened() {
		return
	}
	if len(st.pending) > 0 {
		st.pending = st.pending[st.push(st.pending):]
	}
	if len(st.pending) == 0 {
		st.pending = nil
		if st.shut && !st.fin {
			st.fin = true
			_ = st.ep.Shutdown(tcpip.ShutdownWrite)
		}
	}
	if acked := min(st.acked, st.written); acked > st.told {
		if !st.tell(eventAcked, uint32(acked-st.told), nil) {
			return
		}
		st.told = acked
	}
	if !st.ending {
		st.read()
		return
	}
	if st.fin && !st.closed {
		st.closed = true
		st.ep.Close()
	}
	if st.fin {
		switch state := tcp.EndpointState(st.ep.State()); {
		case state == tcp.StateError:
			st.finish(eventLost, st.reason())
		case st.acked > st.written, state == tcp.StateTimeWait, state == tcp.StateClose:
			st.finish(eventClosed, "")
		}
	}
}

// opened tells that the connection is open, if it is.
func (st *stream) opened() bool {
	switch state := tcp.EndpointState(st.ep.State()); state {
	case tcp.StateError, tcp.StateClose:
		st.finish(eventLost, st.reason())
		return false
	case tcp.StateInitial, tcp.StateBound, tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
		return false
	}
	kind := eventConnected
	if st.called != 0 {
		kind = eventIncoming
	}
	ends := putEnds(nil, netip.AddrPortFrom(st.f.addr, st.flow.local), st.flow.peer, st.f.mssTo(st.flow))
	st.open = st.tell(kind, uint32(st.called), ends)
	return st.open
}

func (st *stream) tell(k handover.Kind, b uint32, data []byte) bool {
	return st.p.tell(st, &handover.Header{Kind: k, Flow: st.number, A: st.id, B: b}, data)
}

// read gives the shard what has arrived, as far as its window and the ring have room.
func (st *stream) read() {
	for !st.eof {
		if len(st.unread) == 0 && !st.fetch() {
			return
		}
		if len(st.unread) > 0 && !st.tell(eventData, 0, st.unread) {
			st.unread = slices.Clone(st.unread)
			return
		}
		st.unread = nil
	}
	if tcp.EndpointState(st.ep.State()) == tcp.StateError {
		st.finish(eventLost, st.reason())
	}
}

// fetch reads what has arrived into unread, which is valid until the next stream is served. It
// returns false if there is nothing.
func (st *stream) fetch() bool {
	part := st.p.scratch[:min(len(st.p.scratch), st.window)]
	w := tcpip.SliceWriter(part)
	got, err := st.ep.Read(&w, tcpip.ReadOptions{})
	switch err.(type) {
	case nil:
		st.unread = part[:got.Count]
		st.window -= got.Count
		return got.Count > 0
	case *tcpip.ErrWouldBlock, *tcpip.ErrBadBuffer: // nothing there, no window
	case *tcpip.ErrClosedForReceive:
		st.eof = st.tell(eventPeerClosed, 0, nil)
	default:
		st.finish(eventLost, err.String())
	}
	return false
}

// reason returns what the endpoint says about its end.
func (st *stream) reason() string {
	if err := st.ep.LastError(); err != nil {
		return err.String()
	}
	return "the connection was reset"
}

// finish sets the connection's last event.
func (st *stream) finish(last handover.Kind, why string) {
	if st.last == 0 {
		st.last, st.why = last, why
		st.p.again(st)
	}
}

package tcp

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// stream is a connection as gVisor has it.
//
//	opening ─▶ open ─▶ (ending) ─▶ over: the last event is told ─▶ removed: gVisor has forgotten it, too
type stream struct {
	s        *Stack
	conn     *Conn
	f        *function // nil: the connection was never begun
	ep       tcpip.Endpoint
	queue    *waiter.Queue
	entry    waiter.Entry
	isMarked bool // guarded by Stack.mu
	flow     flow
	lingers  list.Node[stream] // in function.lingering
	next     *stream           // waits for the ports of this one

	called uint16      // the port at which a peer called; 0: this end called
	limit  tcpip.Timer // gives up an own call that nobody answers
	open   bool        // Connected or Incoming is told
	eof    bool        // PeerClosed is told
	over   bool
	last   EventKind // the last event, which is to be told; 0: none yet
	why    string

	lent    int    // bytes at the beginning of what gVisor has received, which the shard has had
	pending []byte // written, and not yet taken by gVisor, in a buffer of the stack's
	shut    bool   // no more will be written
	ending  bool   // the shard has closed it
	closed  bool   // and gVisor was told
	fin     bool   // gVisor was told that no more will be written

	base  atomic.Uint64 // sequence number of the first byte, and 1<<32; 0: not known yet
	acked uint64        // bytes that the peer's TCP has acknowledged; FIN counts as one
}

var _ served = (*stream)(nil)

func (st *stream) mark() *bool { return &st.isMarked }

// NotifyEvent implements waiter.EventListener.
func (st *stream) NotifyEvent(waiter.EventMask) { st.s.again(st) }

// newStream makes a connection of a function.
func (s *Stack) newStream(function uint32) *stream {
	st := &stream{s: s, conn: &Conn{Function: function}}
	st.conn.st = st
	s.streams[st] = struct{}{}
	return st
}

// connect begins a connection to a peer, from a local port; 0: any.
func (st *stream) connect(f *function, from uint16, to netip.AddrPort) {
	st.s.again(st)
	switch {
	case f == nil:
		st.fail("the function has no address")
	case to.Addr().Is4() != f.addr.Is4():
		st.fail(fmt.Sprintf("%s is of another family than the function's address %s", to.Addr(), f.addr))
	case !f.hasRoom():
		st.fail(fmt.Sprintf("the function has %d connections, as many as it may", f.conns))
	default:
		st.flow = flow{from, to}
		if old := f.streams[st.flow]; old != nil && (old.over || old.ending) && old.next == nil {
			if old.next = st; old.over {
				old.leave()
			}
			return
		}
		st.call(f)
	}
}

// call calls a peer.
func (st *stream) call(f *function) {
	st.f = f
	st.queue = &waiter.Queue{}
	ep, err := f.bound(st.flow.local, st.queue)
	if err != nil {
		st.fail(err.String())
		return
	}
	st.begin(ep)
	st.limit = st.s.clock.AfterFunc(giveUp, st.unanswered)
	to := st.flow.peer
	err = ep.Connect(tcpip.FullAddress{NIC: f.nic(), Addr: tcpAddr(to.Addr()), Port: to.Port()})
	if _, started := err.(*tcpip.ErrConnectStarted); err != nil && !started {
		st.finish(Lost, err.String())
		return
	}
	st.enter(to)
}

// unanswered gives up a call. gVisor itself goes on for two minutes, whatever TCPSynRetriesOption says.
func (st *stream) unanswered() {
	if !st.open && !st.over && st.last == 0 {
		st.ep.Abort()
		st.finish(Lost, (&tcpip.ErrTimeout{}).String())
	}
}

// fail ends a connection that never began.
func (st *stream) fail(why string) {
	st.f = nil
	st.finish(Lost, why)
}

// begin makes the stream one of the function's, with its endpoint.
func (st *stream) begin(ep tcpip.Endpoint) {
	st.ep = ep
	st.f.conns++
	st.s.counts.conns.Add(1)
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

// write takes bytes of the shard, which flush sends.
func (st *stream) write(b []byte) {
	if st.shut || st.last != 0 || len(b) == 0 {
		return
	}
	if st.pending == nil {
		st.pending = st.s.buffer()
	}
	if len(st.pending) == 0 {
		st.s.writers = append(st.s.writers, st)
	}
	st.pending = append(st.pending, b...)
	if st.open && len(st.pending) >= st.f.most() { // that is sent while it is in the processor's cache
		st.s.guarded(func() { st.push(st.f.most()) })
	}
}

// flush gives gVisor what was written: what it has together it sends together.
func (st *stream) flush() {
	if len(st.pending) > 0 {
		st.push(len(st.pending))
	}
	if st.pending != nil && len(st.pending) == 0 {
		st.s.give(st.pending)
		st.pending = nil
	}
}

// push gives gVisor the first n bytes of what was written, as much of them as it takes.
func (st *stream) push(n int) {
	if !st.open || st.over {
		return
	}
	r := bytes.NewReader(st.pending[:n])
	_, _ = st.ep.Write(r, tcpip.WriteOptions{Atomic: true}) // errors are ignored: reading tells more about them
	st.pending = st.pending[:copy(st.pending, st.pending[n-r.Len():])]
}

// buffer returns memory for bytes that are written. give takes it back.
func (s *Stack) buffer() []byte {
	if n := len(s.spare); n > 0 {
		b := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return b
	}
	return make([]byte, 0, s.limits.Buffer)
}

func (s *Stack) give(b []byte) {
	const most = 16
	if b != nil && len(s.spare) < most {
		s.spare = append(s.spare, b[:0])
	}
}

// serve tells the shard what it can be told, and gives gVisor what it takes.
func (st *stream) serve() (ev Event, ok bool) {
	if st.over {
		st.leave()
		return ev, false
	}
	if st.last == 0 {
		if ev, ok = st.progress(); ok {
			return ev, true
		}
	}
	if st.last == 0 {
		return ev, false
	}
	st.over = true
	st.s.give(st.pending)
	st.pending = nil
	ev = st.event(st.last)
	if ev.Why = st.why; st.f != nil {
		st.ep.Close()
	}
	st.leave()
	return ev, true
}

func (st *stream) event(kind EventKind) Event {
	return Event{Kind: kind, Function: st.conn.Function, Conn: st.conn}
}

// leave forgets a stream that is over, when gVisor has forgotten it. Until then it counts, and lingers.
//
// A new connection between the same ports begins when no segments of this one are on their way: when gVisor has
// forgotten this one, or already while gVisor waits in case the last acknowledgement was lost (TIME_WAIT).
// Segments that come late all the same are told apart by their timestamps (RFC 6191, RFC 7323 §5).
func (st *stream) leave() {
	s := st.s
	if _, ok := s.streams[st]; !ok {
		return
	}
	f := st.f
	if f != nil {
		switch state := tcp.EndpointState(st.ep.State()); {
		case state == tcp.StateClose, state == tcp.StateError, state == tcp.StateInitial, state == tcp.StateBound:
		case state == tcp.StateTimeWait && st.next != nil:
			st.ep.Abort()
		default:
			if s.leaveAt == vtime.Never { // others that are over later do not put it off
				s.leaveAt = s.clock.read() + lingerTime.Nanoseconds()
			}
			f.lingering.PushBack(&st.lingers, st)
			return
		}
		st.lingers.Remove()
		st.queue.EventUnregister(&st.entry)
		f.forget(st)
	}
	delete(s.streams, st)
	if next := st.next; next != nil && next.last == 0 {
		next.call(f)
	}
}

// expire forgets streams that gVisor has forgotten since.
func (s *Stack) expire() {
	s.leaveAt = vtime.Never
	for st := range s.streams {
		if st.over {
			st.leave()
		}
	}
}

func (st *stream) progress() (ev Event, ok bool) {
	if st.ep == nil { // it waits for its ports
		return ev, false
	}
	if !st.open {
		return st.opened()
	}
	st.flush()
	c := st.conn
	if acked := min(st.acked, c.written); acked > c.acked {
		c.acked = acked
		return st.event(Acknowledged), true
	}
	if st.shut && !st.fin && c.acked == c.written {
		st.fin = true
		_ = st.ep.Shutdown(tcpip.ShutdownWrite)
	}
	if !st.ending {
		return st.read()
	}
	if st.fin && !st.closed {
		st.closed = true
		st.ep.Close()
	}
	if st.fin {
		switch state := tcp.EndpointState(st.ep.State()); {
		case state == tcp.StateError:
			st.finish(Lost, st.reason())
		case st.acked > c.written, state == tcp.StateTimeWait, state == tcp.StateClose:
			st.finish(Closed, "")
		}
	}
	return ev, false
}

// close ends the connection in order.
func (st *stream) close() {
	if st.shut, st.ending = true, true; !st.open {
		st.reset()
	}
	st.s.again(st)
}

// reset ends the connection at once.
func (st *stream) reset() {
	if st.s.event.Conn == st.conn {
		st.s.release()
	}
	if st.f != nil {
		st.ep.Abort()
	}
	st.finish(Closed, "")
}

// opened tells that the connection is open, if it is.
func (st *stream) opened() (ev Event, ok bool) {
	switch state := tcp.EndpointState(st.ep.State()); state {
	case tcp.StateError, tcp.StateClose:
		st.finish(Lost, st.reason())
		return ev, false
	case tcp.StateInitial, tcp.StateBound, tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
		return ev, false
	}
	c := st.conn
	c.Local, c.Peer, c.MSS = netip.AddrPortFrom(st.f.addr, st.flow.local), st.flow.peer, st.f.mssTo(st.flow)
	st.open = true
	st.stopLimit()
	if ev = st.event(Connected); st.called != 0 {
		ev.Kind, ev.Port = Incoming, st.called
	}
	return ev, true
}

// read lends the shard the next piece of what has arrived, unless the shard has left some of the one before: then
// gVisor keeps it, and holds the peer's window closed.
func (st *stream) read() (ev Event, ok bool) {
	st.takeLent()
	c := st.conn
	if st.eof {
		if tcp.EndpointState(st.ep.State()) == tcp.StateError {
			st.finish(Lost, st.reason())
		}
		return ev, false
	}
	if len(c.in) > 0 {
		return ev, false
	}
	var piece firstPiece
	_, err := st.ep.Read(&piece, tcpip.ReadOptions{Peek: true})
	switch err.(type) {
	case nil:
		c.in, c.kept, st.lent = piece, false, len(piece)
		return st.event(Data), len(piece) > 0
	case *tcpip.ErrWouldBlock: // nothing there
	case *tcpip.ErrClosedForReceive:
		st.eof = true
		return st.event(PeerClosed), true
	default:
		st.finish(Lost, err.String())
	}
	return ev, false
}

// firstPiece keeps the first piece of what is written, and takes no other. It is gVisor's memory, which is valid until
// it is read or the endpoint closed.
type firstPiece []byte

// Write implements io.Writer.
func (p *firstPiece) Write(b []byte) (int, error) {
	if len(*p) > 0 {
		return 0, io.ErrShortWrite
	}
	*p = b
	return len(b), nil
}

// takeLent reads what was lent, which the shard does not use any more.
func (st *stream) takeLent() {
	if st.lent > 0 {
		_, _ = st.ep.Read((*discard)(&st.lent), tcpip.ReadOptions{})
	}
}

// discard is a writer that takes this many bytes, and drops them.
type discard int

// Write implements io.Writer.
func (d *discard) Write(b []byte) (n int, err error) {
	if n = min(len(b), int(*d)); n < len(b) {
		err = io.ErrShortWrite
	}
	*d -= discard(n)
	return n, err
}

// reason returns what the endpoint says about its end.
func (st *stream) reason() string {
	if err := st.ep.LastError(); err != nil {
		return err.String()
	}
	return "the connection was reset"
}

// finish sets the connection's last event.
func (st *stream) finish(last EventKind, why string) {
	if st.last == 0 {
		st.last, st.why = last, why
		st.stopLimit()
		st.s.again(st)
	}
}

// stopLimit stops the timer of a call, which holds the stream.
func (st *stream) stopLimit() {
	if st.limit != nil {
		st.limit.Stop()
	}
}

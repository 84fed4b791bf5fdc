package vsock

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/internal/list"
)

// Conn is one stream flow. It implements net.Conn; all methods may be called
// from several goroutines.
type Conn struct {
	t     *Transport
	key   flowKey
	rcond sync.Cond // something to read, or no more
	wcond sync.Cond // room to write, or no more; also the end of connecting

	connecting bool // REQUEST sent or pending, no answer yet
	gone       bool // no longer in the flow table
	closed     bool // Close was called
	err        error
	localShut  uint32 // Shutdown flags that were or will be sent
	peerShut   uint32

	recv     fifo
	fwdCnt   uint32 // bytes read from recv
	toldFwd  uint32 // fwdCnt of the last packet sent
	sendq    fifo
	txCnt    uint32 // payload bytes sent
	peerBuf  uint32 // BufAlloc of the peer's last packet
	peerFwd  uint32 // FwdCnt of the peer's last packet
	stalled  bool   // a credit request was queued for the current lack of credit
	writing  bool   // a Write is in progress; others wait
	pend     pend
	wait     *time.Timer // limits the wait for the peer's answer to Close
	rdl, wdl deadline

	ready list.Node[Conn] // in Transport.ready
}

// pend is the set of control packets that a flow has to send. It is a set, not a queue, so that it
// stays bounded whatever the peer asks for.
type pend uint8

const (
	pendRequest pend = 1 << iota
	pendResponse
	pendReset
	pendCredit
	pendCreditRequest
	pendShutdown
)

func (t *Transport) newConn(key flowKey) *Conn {
	c := &Conn{t: t, key: key}
	c.rcond.L, c.wcond.L = &t.mu, &t.mu
	c.recv.max, c.sendq.max = bufAlloc, sendBuf
	t.flows[key] = c
	t.ledger.add(key)
	return c
}

// send marks control packets to be sent by the next pump.
func (c *Conn) send(p pend) {
	if !c.gone {
		c.pend |= p
		c.schedule()
	}
}

func (c *Conn) schedule() {
	if !c.gone && c.pending() {
		c.t.ready.PushBack(&c.ready, c)
	}
}

// pending reports whether the flow can send a packet now.
func (c *Conn) pending() bool {
	return c.pend&^pendShutdown != 0 ||
		c.sendq.n > 0 && c.peerFree() > 0 ||
		c.pend&pendShutdown != 0 && c.sendq.n == 0
}

// peerFree returns the number of bytes that the peer has room for, Virtio §5.10.6.3. The counters
// wrap.
func (c *Conn) peerFree() uint32 { return c.peerBuf - min(c.txCnt-c.peerFwd, c.peerBuf) }

// next appends the flow's next packet, with at most room bytes of payload, to pkt. If the flow has
// no packet to send it appends nothing.
func (c *Conn) next(pkt []byte, room int) []byte {
	h := Header{
		SrcCID: uint64(c.t.local), DstCID: uint64(c.t.peer), SrcPort: c.key.local, DstPort: c.key.remote,
		Type: TypeStream, BufAlloc: bufAlloc, FwdCnt: c.fwdCnt,
	}
	switch {
	case c.pend&pendReset != 0:
		h.Op = OpReset
		c.remove()
	case c.pend&pendRequest != 0:
		h.Op = OpRequest
		c.pend &^= pendRequest
	case c.pend&pendResponse != 0:
		h.Op = OpResponse
		c.pend &^= pendResponse
	case c.sendq.n > 0 && c.peerFree() > 0:
		h.Op = OpReadWrite
		h.Len = uint32(min(c.sendq.n, room, int(c.peerFree())))
		c.txCnt += h.Len
	case c.pend&pendCredit != 0:
		h.Op = OpCreditUpdate
	case c.pend&pendCreditRequest != 0:
		h.Op = OpCreditRequest
		c.pend &^= pendCreditRequest
	case c.pend&pendShutdown != 0 && c.sendq.n == 0:
		h.Op, h.Flags = OpShutdown, c.localShut
		c.pend &^= pendShutdown
	default:
		return pkt
	}
	c.toldFwd = c.fwdCnt // every packet carries the credit
	c.pend &^= pendCredit
	pkt = h.Append(pkt)
	if h.Len != 0 {
		pkt = c.sendq.appendTo(pkt, int(h.Len))
		c.askCredit()
		c.wcond.Broadcast()
	}
	return pkt
}

// askCredit queues one credit request each time the credit runs out, in case the peer sends no
// update by itself.
func (c *Conn) askCredit() {
	if c.sendq.n > 0 && c.peerFree() == 0 && !c.stalled {
		c.stalled = true
		c.pend |= pendCreditRequest
	}
}

// credit updates the peer's credit from a packet.
func (c *Conn) credit(h *Header) {
	if c.peerBuf != h.BufAlloc || c.peerFwd != h.FwdCnt {
		c.peerBuf, c.peerFwd = h.BufAlloc, h.FwdCnt
		c.stalled = false
	}
}

// input handles one packet of this flow.
func (c *Conn) input(h *Header, payload []byte) {
	c.credit(h)
	if len(payload) > 0 && h.Op != OpReadWrite {
		c.abort(syscall.EPROTO)
		return
	}
	switch h.Op {
	case OpResponse:
		if !c.connecting {
			c.abort(syscall.EPROTO)
			return
		}
		c.connecting = false
		c.wcond.Broadcast()
	case OpReset:
		c.fail(syscall.ECONNRESET)
	case OpShutdown:
		c.shutdown(h.Flags)
	case OpReadWrite:
		c.data(payload)
	case OpCreditUpdate:
	case OpCreditRequest:
		c.send(pendCredit)
	default:
		c.abort(syscall.EPROTO)
		return
	}
	c.askCredit()
	c.schedule()
}

func (c *Conn) data(payload []byte) {
	switch {
	case c.connecting || c.peerShut&ShutdownSend != 0:
		c.abort(syscall.EPROTO)
	case c.closed: // the packet crossed our SHUTDOWN
	case !c.recv.put(payload):
		c.t.stats.CreditViolations++
		c.abort(syscall.EPROTO)
	default:
		c.rcond.Signal()
	}
}

// shutdown handles the peer's SHUTDOWN. If both directions are shut, the peer waits for a reset
// before it forgets the flow, Virtio §5.10.6.6.2.
func (c *Conn) shutdown(flags uint32) {
	c.peerShut |= flags & shutdownBoth
	if c.peerShut&ShutdownReceive != 0 {
		c.sendq.clear()
	}
	if c.peerShut == shutdownBoth {
		c.pend = 0
		c.send(pendReset)
	}
	c.wake()
}

// abort ends the flow and sends a reset to the peer.
func (c *Conn) abort(err error) {
	c.setErr(err)
	c.pend = 0
	c.send(pendReset)
}

// fail ends the flow without a packet.
func (c *Conn) fail(err error) {
	c.setErr(err)
	c.remove()
	c.t.ledger.remove(c.key)
}

func (c *Conn) setErr(err error) {
	if c.err == nil {
		c.err = err
	}
	c.sendq.clear()
	c.wake()
}

func (c *Conn) remove() {
	c.gone, c.pend = true, 0
	delete(c.t.flows, c.key)
	if c.wait != nil {
		c.wait.Stop()
	}
	if c.closed {
		c.recv.clear()
	}
}

func (c *Conn) wake() {
	c.rcond.Broadcast()
	c.wcond.Broadcast()
}

// Read implements net.Conn. Data that arrived before the peer's shutdown or
// reset is delivered first.
func (c *Conn) Read(p []byte) (int, error) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.rdl.passed():
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case c.recv.n > 0:
			n := c.recv.get(p)
			c.fwdCnt += uint32(n)
			// A credit update for every read would double the number of packets. One for each
			// quarter of the buffer is enough to keep a peer sending.
			if c.fwdCnt-c.toldFwd >= bufAlloc/4 {
				c.send(pendCredit)
				c.t.pump()
			}
			return n, nil
		case c.peerShut&ShutdownSend != 0:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.opError("read", c.err)
		case len(p) == 0:
			return 0, nil
		}
		c.rcond.Wait()
	}
}

// Write implements net.Conn. It returns when all of p is in the flow's send buffer.
func (c *Conn) Write(p []byte) (int, error) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for c.writing {
		if err := c.writable(); err != nil {
			return 0, c.opError("write", err)
		}
		c.wcond.Wait()
	}
	c.writing = true
	defer func() {
		c.writing = false
		c.wcond.Broadcast()
	}()
	n := 0
	for {
		if err := c.writable(); err != nil {
			return n, c.opError("write", err)
		}
		if k := c.sendq.fill(p[n:]); k != 0 {
			n += k
			c.askCredit()
			c.schedule()
			c.t.pump()
		}
		if n == len(p) {
			return n, nil
		}
		if c.sendq.n == c.sendq.max {
			c.wcond.Wait()
		}
	}
}

// writable returns the reason why the flow cannot be written to, or nil if it can.
func (c *Conn) writable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.wdl.passed():
		return os.ErrDeadlineExceeded
	case c.err != nil:
		return c.err
	case c.localShut&ShutdownSend != 0 || c.peerShut&ShutdownReceive != 0:
		return syscall.EPIPE
	}
	return nil
}

// CloseWrite tells the peer that no data follows what was written so far.
func (c *Conn) CloseWrite() error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.localShut |= ShutdownSend
	c.send(pendShutdown)
	c.t.pump()
	c.wake()
	return nil
}

// Close implements net.Conn. Written data is still sent, followed by a SHUTDOWN. The flow ends when
// the peer answers, or after closeTimeout.
func (c *Conn) Close() error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.rdl.set(&c.rcond, time.Time{})
	c.wdl.set(&c.wcond, time.Time{})
	c.wake()
	if c.gone {
		c.recv.clear()
		return nil
	}
	c.localShut = shutdownBoth
	c.send(pendShutdown)
	c.wait = time.AfterFunc(closeTimeout, func() {
		c.t.mu.Lock()
		defer c.t.mu.Unlock()
		c.abort(os.ErrDeadlineExceeded)
		c.t.pump()
	})
	c.t.pump()
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return Addr{c.t.local, c.key.local} }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.t.peer, c.key.remote} }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(at time.Time) error {
	return c.setDeadlines(at, true, true)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(at time.Time) error {
	return c.setDeadlines(at, true, false)
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(at time.Time) error {
	return c.setDeadlines(at, false, true)
}

func (c *Conn) setDeadlines(at time.Time, r, w bool) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	if r {
		c.rdl.set(&c.rcond, at)
	}
	if w {
		c.wdl.set(&c.wcond, at)
	}
	return nil
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "vsock", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// deadline wakes the waiters of a condition when it passes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) set(cond *sync.Cond, at time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = at
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() { // at once if it has passed
			cond.L.Lock()
			defer cond.L.Unlock()
			cond.Broadcast()
		})
	}
	cond.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

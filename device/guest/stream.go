package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// longAgo is a deadline that ends reads at once.
var longAgo = time.Unix(1, 0)

// Stream is a Channel over a stream of bytes. Its reader is the goroutine that runs Serve; the
// writer is another.
//
//	conn ──▶ reader ──▶ mailbox ──▶ shard ──▶ outbox ──▶ writer ──▶ conn
type Stream struct {
	*outbox
	conn    queues.Session
	in      *bufio.Reader // reads from conn
	cfg     StreamConfig
	session *Session

	waits  context.Context // ends with Drop and End: the hello waits for a function no longer
	giveUp context.CancelFunc
}

// StreamConfig holds what a Stream needs to know of the device.
type StreamConfig struct {
	NIC        NIC
	Sessions   *Sessions // the list that this stream is in
	Attachment string    // name of the attachment that the driver came through
	From       Key
	Strict     bool                          // report harmless errors too
	Log        func(msg string, args ...any) // logs what a guest caused; rate limited
}

var (
	_ Channel = (*Stream)(nil)
	_ Served  = (*Stream)(nil)
	_ Asker   = (*Stream)(nil)
)

// NewStream returns a Stream that owns conn. The caller runs Serve.
func NewStream(conn queues.Session, cfg StreamConfig) *Stream {
	s := &Stream{outbox: newOutbox(), conn: conn, in: bufio.NewReaderSize(conn, abi.MaxMessage), cfg: cfg}
	s.direct = newDirect(conn)
	s.waits, s.giveUp = context.WithCancel(context.Background())
	return s
}

// Expect implements Served.
func (s *Stream) Expect(d time.Duration) { _ = s.conn.SetDeadline(time.Now().Add(d)) }

// Drop implements Served.
func (s *Stream) Drop() {
	s.giveUp()
	_ = s.conn.SetDeadline(longAgo)
}

// End implements Channel and Served: it ends the reader, also one that waits because the guest does
// not read its answers. It sets the deadline in another goroutine, because the shard's thread calls
// End and the stream has locks that are held while the guest's memory is copied.
func (s *Stream) End() {
	s.refuse()
	s.giveUp()
	go func() { _ = s.conn.SetReadDeadline(longAgo) }()
}

// Serve runs a session to its end and frees everything it used. The guest sees the end of the
// stream only after the device has stopped touching its memory.
func (s *Stream) Serve() {
	defer s.conn.Close()
	if err := s.hello(); err != nil {
		s.cfg.Log("guest refused", "attachment", s.cfg.Attachment, "guest", Name(s.conn.Identity()), "reason", err)
		return
	}
	who := []any{"function", s.session.Name(), "guest", Name(s.conn.Identity())}
	s.cfg.Log("guest attached", append(who, "driver", s.session.Driver())...)
	var writer sync.WaitGroup
	writer.Go(s.write)
	if fault := s.session.Close(Parse(s.in, s, s.cfg.Strict)); fault != nil {
		s.cfg.Log("guest broke the protocol", append(who, "reason", fault)...)
		m := abi.ErrorMsg{Code: abi.StatusInvalidArgument}
		abi.PutText(m.Reason[:], fault.Error())
		s.finish(&m)
	}
	s.close()
	_ = s.conn.SetWriteDeadline(time.Now().Add(finalTimeout)) // a guest that does not read cannot hold us up
	writer.Wait()
	s.cfg.Log("guest left", who...)
}

// Put implements Asker.
func (s *Stream) Put(r Request) bool {
	if (r.Kind == RegRead || r.Kind == RegWrite) && !s.reserve() {
		return false
	}
	return s.session.Put(r)
}

// Heartbeat implements Asker.
func (s *Stream) Heartbeat(tag uint64, m *abi.Heartbeat) bool {
	if !s.reserve() {
		return false
	}
	s.answer(tag, m)
	return true
}

// write sends the contents of the outbox until it is closed or the guest is gone.
func (s *Stream) write() {
	buf := make([]byte, 0, abi.MaxMessage)
	for last := false; !last; {
		buf, last = s.next(buf[:0])
		if len(buf) == 0 {
			continue
		}
		if err := send(s.conn, buf, s.session.Split()); err != nil {
			_ = s.conn.SetReadDeadline(longAgo) // ends the reader; Close would release the memory first
			s.close()
			return
		}
	}
}

// send writes messages to the guest: at once or, with a seed, in pieces.
func send(to queues.Session, b []byte, seed uint64) error {
	for seed != 0 && len(b) > 1 {
		seed = seed*6364136223846793005 + 1442695040888963407
		n := min(1+int(seed>>33%40), len(b)-1)
		if _, err := to.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if seed>>60 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	_, err := to.Write(b)
	return err
}

// hello reads the first message, gives the driver its function and answers. After an error the
// function is unchanged.
func (s *Stream) hello() error {
	h, body, err := abi.ReadMessage(s.in, make([]byte, abi.MaxMessage))
	if err != nil {
		return fmt.Errorf("no hello: %w", err)
	}
	var m abi.Hello
	if h.Type != abi.MsgHello {
		err = &Refusal{abi.StatusBadState, fmt.Sprintf("the first message has type %d, want a hello (%d)", uint16(h.Type), uint16(abi.MsgHello))}
	} else if err = abi.Decode(body, &m); err != nil {
		err = &Refusal{abi.StatusInvalidArgument, err.Error()}
	} else {
		s.session, err = Open(s.waits, s.cfg.NIC, s.conn, s.cfg.From, s.cfg.Attachment, &m, s)
	}
	if err == nil && !s.cfg.Sessions.greet(s) {
		_ = s.session.Close(nil)
		return errors.New("it said hello too late and was closed to make room for others")
	}
	reply := abi.HelloReply{Major: abi.VersionMajor, Minor: min(m.Minor, abi.VersionMinor)}
	var no *Refusal
	var why abi.ErrorMsg
	switch {
	case errors.As(err, &no):
		reply.Status = no.Status
		why.Code = no.Status
		abi.PutText(why.Reason[:], no.Why)
	case err != nil:
		return err
	default:
		reply.Function, reply.Features = s.session.Function(), s.session.Features()
	}
	answer := abi.AppendStruct(nil, h.Tag, &reply)
	if no != nil {
		answer = abi.AppendStruct(answer, 0, &why)
	}
	if _, werr := s.conn.Write(answer); werr != nil && err == nil {
		_ = s.session.Close(nil)
		return fmt.Errorf("hello not answered: %w", werr)
	}
	if err == nil {
		_ = s.conn.SetDeadline(time.Time{})
		if s.refuses() { // a driver may break the rules as soon as it has the answer
			_ = s.conn.SetReadDeadline(longAgo)
		}
	}
	return err
}

// maxReplies is the most answers that may wait for a guest that does not read.
const maxReplies = 64 // further requests are not read from the stream

// outbox passes a function's events and replies to the writer of its stream. The shard appends and,
// at the end of its Step, flushes. The writer takes everything at once: completion events as a set
// of CQ numbers, events and replies in order. If nothing but completion events waits, the flush
// tries to write them itself.
type outbox struct {
	mu      sync.Mutex
	change  sync.Cond
	events  EventStore
	replies []byte // encoded messages
	waiting int    // requests read from the stream and not yet answered on it
	final   []byte // encoded last message; the writer closes after it
	closed  bool
	refused bool    // no more requests are taken: End was called, maybe before the hello is answered
	writing bool    // the writer is busy writing, or has not started
	direct  *direct // writes completion events without the writer; may be nil
	event   []byte  // for direct
}

// maxDirect is the most completion events that a flush writes itself.
const maxDirect = 256

func newOutbox() *outbox {
	o := &outbox{writing: true}
	o.change.L = &o.mu
	return o
}

// CQEvent implements Channel.
func (o *outbox) CQEvent(cqn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.CQEvent(cqn)
}

// AsyncEvent implements Channel.
func (o *outbox) AsyncEvent(e *abi.AsyncEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.AsyncEvent(e)
}

// DropObject implements Channel.
func (o *outbox) DropObject(kind abi.Object, number uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.DropObject(kind, number)
}

// Untaken implements Channel.
func (o *outbox) Untaken() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.events.Waiting()
}

// Reply implements Channel.
func (o *outbox) Reply(tag uint64, r *abi.RegReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replies = abi.AppendStruct(o.replies, tag, r)
}

// Forget implements Channel.
func (o *outbox) Forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.Forget()
}

// Flush implements Channel.
func (o *outbox) Flush() (woke bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.empty() || o.writing || o.sendNow() {
		return false // the writer looks again before it waits
	}
	o.change.Broadcast()
	return true
}

func (o *outbox) empty() bool { return o.events.Empty() && len(o.replies) == 0 }

// sendNow writes completion events at once, if nothing else waits. If the stream takes only a part
// of the message, the writer sends the rest first of all.
func (o *outbox) sendNow() bool {
	if o.direct == nil || o.closed || o.final != nil || o.events.Waiting()+len(o.replies) > 0 || len(o.events.CQs()) > maxDirect {
		return false
	}
	o.event = appendCQEvent(o.event[:0], o.events.CQs())
	n := o.direct.write(o.event)
	if n > 0 {
		o.events.Taken()
		o.replies = append(o.replies, o.event[n:]...)
	}
	return n == len(o.event)
}

// reserve is called by the reader before it passes a request on. It waits while too many are
// unanswered, and returns false once the outbox refuses requests or is closed.
func (o *outbox) reserve() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.waiting >= maxReplies && !o.refused && !o.closed {
		o.change.Wait()
	}
	o.waiting++
	return !o.refused && !o.closed
}

// refuse makes reserve return false from now on.
func (o *outbox) refuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused = true
	o.change.Broadcast()
}

func (o *outbox) refuses() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refused
}

// answer answers a reserved request that does not go to the shard.
func (o *outbox) answer(tag uint64, m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replies = abi.AppendStruct(o.replies, tag, m)
	o.change.Broadcast()
}

// finish makes m the last message of the stream; the first caller wins.
func (o *outbox) finish(m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final == nil {
		o.final = abi.AppendStruct(nil, 0, m)
	}
	o.change.Broadcast()
}

// close ends the writer without a last message.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.change.Broadcast()
}

// next waits for output and appends it to b as messages. last is true with the final message, and
// also when the outbox was closed.
func (o *outbox) next(b []byte) (out []byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing = false
	defer func() { o.writing = true }()
	for o.empty() && o.final == nil && !o.closed {
		o.change.Wait()
	}
	b = append(b, o.replies...)
	o.replies = o.replies[:0]
	async := o.events.Async()
	for i := range async {
		b = abi.AppendStruct(b, 0, &async[i])
	}
	const most = (abi.MaxMessage - abi.MsgHeaderSize) / 4
	for list := o.events.CQs(); len(list) > 0; list = list[min(len(list), most):] {
		b = appendCQEvent(b, list[:min(len(list), most)])
	}
	o.events.Taken()
	if o.waiting > 0 {
		o.waiting = 0
		o.change.Broadcast()
	}
	return append(b, o.final...), o.closed || o.final != nil
}

func appendCQEvent(b []byte, cqs []uint32) []byte {
	b = abi.AppendMessage(b, abi.MsgCQEvent, 0, nil)
	start := len(b) - abi.MsgHeaderSize
	for _, n := range cqs {
		b = append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	n := len(b) - start
	b[start], b[start+1], b[start+2], b[start+3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return b
}

// direct writes to a control stream from the shard's thread, if the stream is a socket and takes
// the bytes at once. The alternative is to wake the writer: a goroutine, for which Go wakes a
// thread that then looks for more work. That cost 70 µs of processor time per completion event.
type direct struct {
	raw  syscall.RawConn
	call func(fd uintptr)
	b    []byte
	n    int
}

// newDirect returns nil for a stream that is not a socket.
func newDirect(conn net.Conn) *direct {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	d := &direct{raw: raw}
	d.call = func(fd uintptr) { d.n, _ = unix.SendmsgN(int(fd), d.b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) }
	return d
}

// write returns how many bytes of b were written, perhaps none.
func (d *direct) write(b []byte) int {
	d.b, d.n = b, 0
	if err := d.raw.Control(d.call); err != nil {
		return 0 // closed
	}
	return max(d.n, 0)
}

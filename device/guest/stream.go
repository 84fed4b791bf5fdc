package guest

import (
	"bufio"
	"sync"
	"sync/atomic"
	"time"

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
	ended   atomic.Bool // End was called, maybe before the hello is answered
}

// StreamConfig holds what a Stream needs to know of the device.
type StreamConfig struct {
	Desk       Desk
	Sessions   *Sessions // the list that this stream is in
	Attachment string    // its name
	From       Key
	Strict     bool                          // report harmless errors too
	Log        func(msg string, args ...any) // logs what a guest caused; rate limited
}

var (
	_ Channel = (*Stream)(nil)
	_ Carrier = (*Stream)(nil)
	_ Asker   = (*Stream)(nil)
)

// NewStream returns a Stream that owns conn. The caller runs Serve.
func NewStream(conn queues.Session, cfg StreamConfig) *Stream {
	s := &Stream{outbox: newOutbox(), conn: conn, in: bufio.NewReaderSize(conn, abi.MaxMessage), cfg: cfg}
	s.direct = newDirect(conn)
	return s
}

// Expect implements Carrier.
func (s *Stream) Expect(d time.Duration) { _ = s.conn.SetDeadline(time.Now().Add(d)) }

// Drop implements Carrier.
func (s *Stream) Drop() { _ = s.conn.SetDeadline(longAgo) }

// End implements Channel and Carrier: it ends the reader. It does so in another goroutine, because
// the shard's thread calls End and the stream has locks that are held while the guest's memory is
// copied.
func (s *Stream) End() {
	s.ended.Store(true)
	go func() { _ = s.conn.SetReadDeadline(longAgo) }()
}

// Serve runs a session to its end and frees everything it used. The guest sees the end of the
// stream only after the device has stopped touching its memory.
func (s *Stream) Serve() {
	defer s.conn.Close()
	if err := s.hello(); err != nil {
		s.cfg.Log("guest refused", "attachment", s.cfg.Attachment, "guest", Name(s.conn.Peer()), "reason", err)
		return
	}
	who := []any{"function", s.session.Name(), "guest", Name(s.conn.Peer())}
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

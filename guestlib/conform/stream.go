package conform

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// stream is the control stream. A check sends each message itself; the device's messages are kept
// until a check takes them.
type stream struct {
	t    *T
	conn net.Conn
	tag  uint64
	hold sync.Mutex // held while a message is stored, and by pause

	mu   sync.Mutex
	got  []message      // messages that no check has taken yet
	end  error          // why the reader ended
	left bool           // said goodbye
	seen func(*message) // called by the reader with each message before it is stored
}

// message is a message of the device. A CQ event with several queue numbers becomes one message for
// each.
type message struct {
	abi.MsgHeader
	body []byte
	cqn  uint32
}

// read is the reader goroutine. It always reads (DRV-205), except in checks of drivers that do not.
func (s *stream) read() {
	buf := make([]byte, abi.MaxMessage)
	for {
		h, body, err := abi.ReadMessage(s.conn, buf)
		s.hold.Lock()
		s.mu.Lock()
		switch {
		case err != nil:
			s.end = err
		case h.Type == abi.MsgCQEvent:
			for b := body; len(b) >= 4; b = b[4:] {
				s.add(message{h, nil, binary.LittleEndian.Uint32(b)})
			}
		default:
			s.add(message{h, append([]byte(nil), body...), 0})
		}
		s.mu.Unlock()
		s.hold.Unlock()
		if err != nil {
			return
		}
	}
}

// pause stops the reader until resume is called; one more message may be read, but is not stored
// before. No request gets an answer meanwhile.
func (s *stream) pause() (resume func()) {
	s.hold.Lock()
	return sync.OnceFunc(s.hold.Unlock)
}

func (s *stream) add(m message) {
	if s.seen != nil {
		s.seen(&m)
	}
	s.got = append(s.got, m)
}

// onMessage makes the reader call f with each message.
func (s *stream) onMessage(f func(*message)) {
	s.mu.Lock()
	s.seen = f
	s.mu.Unlock()
}

// take removes and returns the first stored message that fits.
func (s *stream) take(fits func(*message) bool) (m message, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.got {
		if fits(&s.got[i]) {
			m = s.got[i]
			s.got = append(s.got[:i], s.got[i+1:]...)
			return m, true
		}
	}
	return m, false
}

// takeAll removes and returns all stored messages.
func (s *stream) takeAll() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.got
	s.got = nil
	return all
}

// ended reports whether the stream has ended.
func (s *stream) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end != nil
}

// wait takes the first message that fits, and waits for it if none is stored.
func (s *stream) wait(what string, fits func(*message) bool) (m message) {
	s.t.until(func() (ok bool) {
		over := s.ended() // before looking: what came before the end counts
		if m, ok = s.take(fits); !ok && over {
			s.t.Fatalf("the device closed the stream, want %s", what)
		}
		return ok
	}, "%s", what)
	return m
}

// never fails the check if a message that fits comes within a short time.
func (s *stream) never(what string, fits func(*message) bool) {
	s.t.never(func() bool { _, ok := s.take(fits); return ok }, "the device sent %s", what)
}

// closed waits until the device has closed the stream.
func (s *stream) closed() { s.t.until(s.ended, "the end of the stream") }

// write sends bytes. It ignores errors: if the device has closed the stream, the reader notices.
func (s *stream) write(b []byte) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.t.cfg.Wait))
	_, _ = s.conn.Write(b)
}

// send sends a message with a new tag.
func (s *stream) send(m abi.Message) (tag uint64) {
	s.tag++
	s.write(abi.AppendStruct(nil, s.tag, m))
	return s.tag
}

// reply waits for the answer to a tag.
func (s *stream) reply(tag uint64, what string) message {
	return s.wait(what, func(m *message) bool {
		return m.Tag == tag && m.Type != abi.MsgCQEvent && m.Type != abi.MsgAsyncEvent && m.Type != abi.MsgError
	})
}

// answer sends q and decodes the answer into a.
func (s *stream) answer(q, a abi.Message) {
	m := s.reply(s.send(q), a.MsgType().String())
	if m.Type != a.MsgType() {
		s.t.Fatalf("%s is answered by %s", q.MsgType(), m.Type)
	}
	s.t.noError(abi.Decode(m.body, a))
}

// goodbye ends the stream and waits until the device has closed it.
func (s *stream) goodbye() {
	s.left = true
	s.write(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
	s.closed()
}

// leave ends the stream in whatever state it is. If the device does not close it, the device may
// still use the client's memory; the client ends anyway.
func (s *stream) leave() {
	if !s.ended() && !s.left {
		s.write(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
		for end := time.Now().Add(s.t.cfg.Wait); !s.ended() && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
	}
	s.conn.Close()
	for !s.ended() { // the reader is over
		time.Sleep(100 * time.Microsecond)
	}
}

// event waits for an asynchronous event.
func (s *stream) event(typ abi.EventType) (e abi.AsyncEvent) {
	m := s.wait(typ.String(), isEvent(typ))
	s.t.noError(abi.Decode(m.body, &e))
	if m.Tag != 0 {
		s.t.Fatalf("%s with tag %d, want 0", typ, m.Tag)
	}
	return e
}

func isEvent(typ abi.EventType) func(*message) bool {
	return func(m *message) bool {
		return m.Type == abi.MsgAsyncEvent && len(m.body) >= 2 && abi.EventType(binary.LittleEndian.Uint16(m.body)) == typ
	}
}

// anyEvent matches every asynchronous event.
func anyEvent(m *message) bool { return m.Type == abi.MsgAsyncEvent }

// isCQEvent matches an event of a completion queue.
func isCQEvent(cqn uint32) func(*message) bool {
	return func(m *message) bool { return m.Type == abi.MsgCQEvent && m.cqn == cqn }
}

package cmlink

import (
	"bytes"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Errors of Send.
var (
	ErrDown    = errors.New("the link is down")
	ErrTooLong = errors.New("message too long")
	ErrFull    = errors.New("send queue full, connection broken")
)

// session is one connection from PeerUp to PeerDown.
type session struct {
	conn   net.Conn
	raw    net.Conn // the TCP connection under conn
	cert   *x509.Certificate
	dialed bool          // by this NIC
	clocks bool          // keepalives carry clocks
	wake   chan struct{} // there is something in the queue, or finishing is set; capacity 1
	once   sync.Once
	ended  chan struct{}
	reason error // set before ended is closed

	mu        sync.Mutex
	queue     [][]byte
	newest    []byte // message that was queued last
	finishing bool   // it ends when the queue is empty
}

func newSession(conn, raw net.Conn, cert *x509.Certificate) *session {
	return &session{conn: conn, raw: raw, cert: cert, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// end breaks the connection. The first reason is kept.
func (s *session) end(reason error) {
	s.once.Do(func() {
		s.reason = reason
		close(s.ended)
		_ = s.raw.Close() // immediate; closing conn would first wait to send an alert
	})
}

// put queues a message; false: there are as many as may wait.
func (s *session) put(msg []byte, room int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= room {
		return false
	}
	s.queue, s.newest = append(s.queue, msg), msg
	s.notify()
	return true
}

// finish ends the session when its queue is empty. The last message is farewell, if there is one.
func (s *session) finish(farewell []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if farewell != nil && !bytes.Equal(s.newest, farewell) {
		s.queue = append(s.queue, farewell)
	}
	s.finishing = true
	s.notify()
}

func (s *session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take appends frames with waiting messages to b, up to about MaxMessage bytes. It returns how many
// it took, and whether nothing more will come.
func (s *session) take(b []byte) (_ []byte, n int, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(s.queue) && len(b) < MaxMessage {
		b = appendFrame(b, s.queue[n])
		n++
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil
		return b, n, s.finishing
	}
	s.notify()
	return b, n, false
}

// MaxMessage is the most bytes a message can have.
const MaxMessage = 64 << 10

// A frame is the length of the message in 32 bits, big-endian, and the message. A frame of length 0
// is a keepalive, not a message: the clock of its sender follows, in nanoseconds since 1970.
const (
	frameHeader = 4
	clockSize   = 8
)

// readFrame reads one message, or nil for a keepalive, but not its clock.
func readFrame(r io.Reader) ([]byte, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(h[:])
	if n > MaxMessage {
		return nil, fmt.Errorf("frame of %d bytes, at most %d", n, MaxMessage)
	}
	if n == 0 {
		return nil, nil
	}
	msg := make([]byte, n)
	if _, err := io.ReadFull(r, msg); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return msg, nil
}

func appendFrame(b, msg []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(msg)))
	return append(b, msg...)
}

// appendKeepalive appends a keepalive, with a clock if the other end expects one.
func appendKeepalive(b []byte, clocks bool, now time.Time) []byte {
	b = appendFrame(b, nil)
	if clocks {
		b = binary.BigEndian.AppendUint64(b, uint64(now.UnixNano()))
	}
	return b
}

// readClock reads the clock of a keepalive.
func readClock(r io.Reader) (time.Time, error) {
	var b [clockSize]byte
	_, err := io.ReadFull(r, b[:])
	return time.Unix(0, int64(binary.BigEndian.Uint64(b[:]))), err
}

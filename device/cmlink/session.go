package cmlink

import (
	"crypto/x509"
	"errors"
	"net"
	"sync"
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
	queue  chan []byte
	once   sync.Once
	ended  chan struct{}
	reason error // set before ended is closed
}

// end breaks the connection. The first reason is kept.
func (s *session) end(reason error) {
	s.once.Do(func() {
		s.reason = reason
		close(s.ended)
		_ = s.raw.Close() // immediate; closing conn would first wait to send an alert
	})
}

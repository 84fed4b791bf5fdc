package cmlink

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/internal/loglimit"
)

// shared holds what a Link and its peers use in common.
type shared struct {
	cfg      Config // its Identity is that of the start
	identity atomic.Pointer[Identity]
	handler  Handler
	ctx      context.Context // canceled by Close
	listens  string          // address that peers dial; "": none
	refusals loglimit.Log    // what strangers cause
	stats    counters
}

func newShared(cfg Config, h Handler) *shared {
	cfg.defaults()
	s := &shared{cfg: cfg, handler: h, refusals: loglimit.Log{To: cfg.Log}}
	s.identity.Store(cfg.Identity)
	return s
}

type counters struct {
	accepted, dialed, refusedIdentity, handshakeFailed, displaced, dialFailed, down, queueFull, messagesIn, messagesOut atomic.Uint64
}

// Stats counts events since New.
type Stats struct {
	Accepted        uint64 // accepted connections that came up
	Dialed          uint64
	RefusedIdentity uint64 // peers that could not prove who they are
	HandshakeFailed uint64 // handshakes that failed for another reason
	Displaced       uint64 // connections without a proved identity that newer ones replaced: too many at a time
	DialFailed      uint64
	Down            uint64 // connections that ended
	QueueFull       uint64 // connections that ended because the send queue was full
	MessagesIn      uint64
	MessagesOut     uint64
	CertificateEnds uint64 // when this NIC's certificate expires, or its CA's if sooner: seconds since 1970
}

var errDisplaced = fmt.Errorf("more than %d connections from one address, or %d from strangers, had not proved who they are", maxPerAddress, maxStrangers)

// refuse counts and logs a connection that failed before it was up.
func (s *shared) refuse(remote string, err error) {
	if s.ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, errDisplaced):
		s.stats.displaced.Add(1)
	case errors.Is(err, ErrIdentity):
		s.stats.refusedIdentity.Add(1)
	default:
		s.stats.handshakeFailed.Add(1)
	}
	s.refusals.Warn("connection management: peer refused", "remote", remote, "err", err, "remedy", remedyFor(err))
}

// remedyFor returns the remedy for a connection that was refused because of err.
func remedyFor(err error) string {
	var invalid x509.CertificateInvalidError
	var stranger x509.UnknownAuthorityError
	switch {
	case errors.Is(err, errDisplaced):
		return "let only peers reach cm.listen (a firewall rule)"
	case errors.Is(err, ErrRevoked):
		return "it stays out; to let it in again, make it another identity (`vnic keys add`)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate's time is over, or has not begun by this machine's clock: `vnic keys show` there says when it ends"
	case errors.As(err, &stranger), errors.Is(err, errDropped):
		return "its certificate is of another authority: both NICs need files of one `vnic keys init`, ca.pem among them; if the authority was replaced, one of the two has the old files"
	case errors.Is(err, ErrIdentity):
		return "compare peers[] here with cm.name and the identity there (`vnic keys show`)"
	case alerted(err):
		return "the other end refused this NIC: its log says why"
	}
	return "what answers there is not a vnic NIC, or the network cut it off"
}

// alerted reports whether the other end refused the handshake with a TLS alert.
func alerted(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// reasonFor explains to people why a link ended.
func reasonFor(err error) error {
	switch {
	case errors.Is(err, net.ErrClosed):
		return fmt.Errorf("this NIC ends (%w)", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the peer has closed it, or has ended (%w)", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer has been silent for too long, or the network is cut (%w)", err)
	}
	return err
}

// sleep waits; it returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

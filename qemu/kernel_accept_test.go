package qemu

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/vsock"
)

// listed is a listener that returns these connections and then net.ErrClosed.
type listed []net.Conn

func (l *listed) Accept() (net.Conn, error) {
	if len(*l) == 0 {
		return nil, net.ErrClosed
	}
	c := (*l)[0]
	*l = (*l)[1:]
	return c, nil
}

func (l *listed) Close() error   { return nil }
func (l *listed) Addr() net.Addr { return nil }

// failing is a listener whose Accept fails.
type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// from is a connection from a peer address.
type from struct {
	net.Conn
	addr   net.Addr
	closed bool
}

func (c *from) RemoteAddr() net.Addr { return c.addr }
func (c *from) Close() error         { c.closed = true; return nil }

// TestKernelRefuses: a peer without a vsock address is refused, and so is a guest whose memory file
// is missing. Other guests are still served.
func TestKernelRefuses(t *testing.T) {
	stranger := &from{addr: &net.TCPAddr{}}
	broken := &from{addr: &vsock.Addr{ContextID: 7}}
	good := &from{addr: &vsock.Addr{ContextID: 8}}
	a := kernelAttachment{l: &listed{stranger, broken, good}, port: 5, rams: map[uint32]kernelGuest{7: {GuestRAM{CID: 7, File: t.TempDir() + "/none"}, nil}}}
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Peer(); p.CID != 8 {
		t.Errorf("peer %+v", p)
	}
	if !stranger.closed || !broken.closed || good.closed {
		t.Errorf("closed: %v, %v and %v", stranger.closed, broken.closed, good.closed)
	}
	s.Close()
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	a.l = failing{}
	if _, err := a.Accept(); !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "vsock port 5: ") {
		t.Error(err)
	}
}

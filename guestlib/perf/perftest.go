package perf

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"time"
)

// The programs of perftest meet over TCP, at the port whose number is our service's; this package
// meets over RDMA. Neither answers the other: who waits for the other kind is told so, instead of
// waiting on.

// perftestTime bounds what is done to find out.
const perftestTime = time.Second

// perftestHello is how a client of perftest begins: its version, and zeros.
var perftestHello = regexp.MustCompile(`^[0-9]+\.[0-9]+[^\x00]*\x00`)

// perftestHelloLen is the length of that, and perftestVersion what is sent to see whether a server
// answers.
const (
	perftestHelloLen = 16
	perftestVersion  = "6.10"
)

// atPort is the TCP address that perftest's programs use for a service; "" where there is none.
func atPort(host string, service uint64) string {
	if service == 0 || service > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.FormatUint(service, 10))
}

// watchPerftest ends ctx, with the reason as its cause, when a client of perftest comes to l.
func watchPerftest(l net.Listener, t Test, end context.CancelCauseFunc) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		b := make([]byte, perftestHelloLen)
		_ = c.SetDeadline(time.Now().Add(perftestTime))
		n, _ := io.ReadFull(c, b)
		_ = c.Close()
		if perftestHello.Match(b[:n]) {
			end(fmt.Errorf("a program of perftest (ib_%s) at %v asks for the test, which this is not: start vnic guest perf %[1]s there, or ib_%[1]s here, if its Linux driver has this function", t, c.RemoteAddr()))
			return
		}
	}
}

// expectPerftest has ctx end, with the reason as its cause, when a client of perftest looks for a
// server here. stop ends the looking. Where the port is taken, or there is none, nobody looks.
func (s *session) expectPerftest(ctx context.Context) (_ context.Context, stop func()) {
	ctx, end := context.WithCancelCause(ctx)
	at := atPort("", s.Service)
	if at == "" {
		return ctx, func() { end(nil) }
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return ctx, func() { end(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchPerftest(l, s.Test, end)
	}()
	return ctx, func() {
		_ = l.Close()
		<-done
		end(nil)
	}
}

// perftestWaits tells whether a server of perftest listens at the peer: it answers the version of a
// client with its own. Something else may take every connection, as some proxies do.
func (s *session) perftestWaits(ctx context.Context) bool {
	at := atPort(netip.AddrFrom16(s.Peer).Unmap().String(), s.Service)
	if at == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, perftestTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(perftestTime))
	b := make([]byte, perftestHelloLen)
	copy(b, perftestVersion)
	if _, err := c.Write(b); err != nil {
		return false
	}
	_, err = io.ReadFull(c, b)
	return err == nil && perftestHello.Match(b)
}

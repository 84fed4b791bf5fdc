package control

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowClients: hundreds of connections that send nothing, or half a request, prevent nobody
// from getting an answer, although nothing times out here, and their number is bounded.
func TestSlowClients(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	working, release := make(chan struct{}), make(chan struct{})
	s := &http.Server{}
	c := BoundClients(s, 8)
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer c.Busy(r)()
		if r.URL.Path == "/long" {
			close(working)
			<-release
		}
	})
	served := make(chan error)
	go func() { served <- s.Serve(ln) }()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) error {
		resp, err := client.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	long := make(chan error)
	go func() { long <- get("/long") }()
	<-working
	for i := range 300 {
		slow, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Close()
		if i%2 == 0 {
			_, _ = slow.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\nX: "))
		}
	}
	for range 3 {
		if err := get("/"); err != nil {
			t.Error(err)
		}
	}
	c.mu.Lock()
	if len(c.oldest) > 8 {
		t.Errorf("%d connections", len(c.oldest))
	}
	c.mu.Unlock()
	close(release)
	if err := <-long; err != nil {
		t.Errorf("one that was being answered: %v", err)
	}
}

// TestSilentOnSocket: the control socket answers although there are more silent clients than
// places.
func TestSilentOnSocket(t *testing.T) {
	_, c, path := serve(t, sample())
	var first net.Conn
	for range 2 * maxClients {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if first == nil {
			first = conn
		}
	}
	if _, err := c.NIC(t.Context()); err != nil {
		t.Error(err)
	}
	_ = first.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := first.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest is still open")
	}
}

// pipes is a listener whose connections come from a channel.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// TestCloseHangsUp: a silent client delays Close by a second, and is then disconnected.
func TestCloseHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := make(pipes)
		s := ServeOn(ln, sample())
		here, there := net.Pipe()
		ln <- there
		var err error
		go func() { _, err = here.Read(make([]byte, 1)) }()
		synctest.Wait()
		start := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if took := time.Since(start); took != time.Second || !errors.Is(err, io.EOF) {
			t.Errorf("after %s the client sees %v", took, err)
		}
		_ = here.Close()
	})
}

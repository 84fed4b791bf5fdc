package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowClientsHoldUpNobody: hundreds of connections that send nothing, or half a request, prevent nobody
// from getting an answer, although nothing times out here, and their number is bounded.
func TestSlowClientsHoldUpNobody(t *testing.T) {
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

// line is a connection that records only whether it is open.
type line struct {
	net.Conn
	closed bool
}

func (l *line) Close() error { l.closed = true; return nil }

// TestANewConnectionReplacesTheOldestIdleOne: a new connection replaces the oldest one that is not
// busy. If all are busy, it gets no place. A connection that ends makes room.
func TestANewConnectionReplacesTheOldestIdleOne(t *testing.T) {
	c := &Clients{most: 3}
	lines := make([]*line, 9)
	clients := make([]*client, len(lines))
	come := func(i int) { lines[i] = &line{}; clients[i] = c.add(lines[i]) }
	open := func(want string) {
		t.Helper()
		got := ""
		for i, l := range lines {
			if l != nil && !l.closed {
				got += fmt.Sprint(i)
			}
		}
		if got != want || len(c.oldest) > 3 {
			t.Errorf("open are %s, want %s; %d have a place", got, want, len(c.oldest))
		}
	}
	come(0)
	come(1)
	come(2)
	open("012")
	done := c.Busy((&http.Request{}).WithContext(context.WithValue(t.Context(), clientKey{}, clients[0])))
	come(3)
	open("023")
	c.set(clients[2], true)
	c.set(clients[3], true)
	come(4)
	open("023")
	done()
	come(5)
	open("235")
	c.remove(lines[3])
	lines[3].closed = true
	come(6)
	open("256")
	c.Busy(&http.Request{})() // of no client: nothing happens
}

// chunks is a connection that returns its data in pieces.
type chunks struct {
	net.Conn
	list []string
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.list) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.list[0])
	if c.list[0] = c.list[0][n:]; c.list[0] == "" {
		c.list = c.list[1:]
	}
	return n, nil
}

// TestAnAnswerMustBeginLikeHTTP: an answer must begin like HTTP, in any pieces. Nothing of another
// answer is passed on.
func TestAnAnswerMustBeginLikeHTTP(t *testing.T) {
	for _, c := range []struct {
		pieces []string
		want   string
		ok     bool
	}{
		{[]string{"HTTP/1.1 200 OK"}, "HTTP/1.1 200 OK", true},
		{[]string{"H", "T", "TP", "/", "1.1 HTTX"}, "HTTP/1.1 HTTX", true},
		{[]string{"HTTP/"}, "HTTP/", true},
		{[]string{"HTTP", "/", "HTTP?"}, "HTTP/HTTP?", true},
		{[]string{"HTTX/1.1"}, "", false},
		{[]string{"HTTP", "x1.1"}, "HTTP", false},
		{[]string{"H", "x"}, "H", false},
		{[]string{"\x10\x00"}, "", false},
		{nil, "", true},
	} {
		got, err := io.ReadAll(&wary{Conn: &chunks{list: c.pieces}})
		if string(got) != c.want || (err == nil) != c.ok || err != nil && !errors.Is(err, ErrNoControl) {
			t.Errorf("%q: %q, %v", c.pieces, got, err)
		}
	}
}

// TestASocketsPathLeavesRoomForItsTemporaryName: a control socket's path must leave room for the
// temporary name.
func TestASocketsPathLeavesRoomForItsTemporaryName(t *testing.T) {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	most := maxPath - len(fmt.Sprintf(".%d", os.Getpid()))
	for n, want := range map[int]bool{most: true, most + 1: false} {
		path := filepath.Join(dir, strings.Repeat("x", n-len(dir)-1))
		ln, err := Listen(path)
		if (err == nil) != want || err != nil &&
			!strings.Contains(err.Error(), fmt.Sprintf("%d bytes long, at most %d", n, most)) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if ln != nil {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", st, err)
			}
			if err := ln.Close(); err != nil {
				t.Error(err)
			}
			if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closed again: %v", err)
			}
		}
	}
}

// TestABodyIsAsLongAsTheBoundAndNoLonger: a request's body may be as long as the bound, and not a
// byte longer; data after the object is not read.
func TestABodyIsAsLongAsTheBoundAndNoLonger(t *testing.T) {
	for n, want := range map[int]bool{maxBody: true, maxBody + 1: false} {
		text := strings.Repeat(" ", n-len(`{"clear":true}`)) + `{"clear":true}`
		var c LinkChange
		if err := body(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(text)), &c); (err == nil) != want || err == nil && !c.Clear {
			t.Errorf("%d bytes: %v, %+v", n, err, c)
		}
	}
}

// TestAStreamThatEndsAtOnceSaysWhy: a stream that ends before anything was written reports why; one
// that has begun just ends.
func TestAStreamThatEndsAtOnceSaysWhy(t *testing.T) {
	for _, c := range []struct {
		write  string
		err    error
		status int
		body   string
	}{
		{"", nil, http.StatusOK, ""},
		{"", BadRequest{errors.New("which?")}, http.StatusBadRequest, "which?"},
		{"", errors.New("the NIC has stopped"), http.StatusServiceUnavailable, "the NIC has stopped"},
		{"text", nil, http.StatusOK, "text"},
		{"text", errors.New("the NIC has stopped"), http.StatusOK, "text"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stream(t.Context(), w, r, "text/x", func(_ context.Context, out io.Writer) error {
				if c.write != "" {
					_, _ = io.WriteString(out, c.write)
				}
				return c.err
			})
		}))
		resp, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		s.Close()
		kind := resp.Header.Get("Content-Type")
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(b), c.body) ||
			(kind == "text/x") != (c.write != "") || c.body == "text" && string(b) != "text" {
			t.Errorf("%+v: %d %s %q, %v", c, resp.StatusCode, kind, b, err)
		}
	}
}

// TestErrorsAreExplained: for each way in which a NIC does not answer, the error names a remedy and
// still wraps the original error.
func TestErrorsAreExplained(t *testing.T) {
	c := NewClient("/run/c.sock")
	for _, x := range []struct {
		err  error
		text string
		is   error
	}{
		{fs.ErrNotExist, "does not exist", fs.ErrNotExist},
		{syscall.ECONNREFUSED, "is gone", syscall.ECONNREFUSED},
		{fs.ErrPermission, "only the user", fs.ErrPermission},
		{ErrNoControl, "guests' sockets", ErrNoControl},
		{context.Canceled, "interrupted", context.Canceled},
		{os.ErrDeadlineExceeded, "no answer in time", context.DeadlineExceeded},
		{context.DeadlineExceeded, "no answer in time", context.DeadlineExceeded},
		{io.EOF, "closed without an answer", nil},
		{io.ErrUnexpectedEOF, "closed without an answer", nil},
		{syscall.ECONNRESET, "closed without an answer", nil},
		{syscall.EPIPE, "closed without an answer", nil},
		{net.ErrClosed, "closed without an answer", nil},
		{errors.New("http: server closed idle connection"), "closed without an answer", nil},
		{syscall.ENOMEM, "cannot allocate memory", syscall.ENOMEM},
	} {
		err := c.explain(fmt.Errorf("dial: %w", x.err))
		if !strings.Contains(err.Error(), x.text) || !strings.Contains(err.Error(), "/run/c.sock") || x.is != nil &&
			!errors.Is(err, x.is) {
			t.Errorf("%v: %v", x.err, err)
		}
	}
}

// TestAPathIsFreeIfNobodyAnswersThere: a path is free if there is nothing, or a socket at which
// nobody answers.
func TestAPathIsFreeIfNobodyAnswersThere(t *testing.T) {
	dir := t.TempDir()
	if err := vacate(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
	if err := vacate(filepath.Join(dir, strings.Repeat("x", 300))); err == nil {
		t.Error("a path that cannot be is free")
	}
	if err := vacate(dir); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a folder: %v", err)
	}
}

package perf

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
)

// TestPerftestIsRecognised: a client of perftest ends the waiting of a server with what to do, and
// nobody else does, who sends something else, nothing, or part of it.
func TestPerftestIsRecognised(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchPerftest(l, Test{Op: Write}, end)
	}()
	for _, hello := range []string{"", "6.1", "GET / HTTP/1.1\r\n", "vnicperf\x00\x00\x00\x00\x00\x00\x00\x00", "6.10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		if err := ctx.Err(); err != nil {
			t.Fatalf("before %q: %v", hello, context.Cause(ctx))
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(hello)); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = c.Read(make([]byte, 1)) // until it is hung up
		_ = c.Close()
	}
	<-done
	if err := context.Cause(ctx); err == nil || !strings.Contains(err.Error(), "a program of perftest (ib_write_bw) at 127.0.0.1:") || !strings.Contains(err.Error(), "start vnic guest perf write_bw there, or ib_write_bw here") {
		t.Error(err)
	}
	_ = l.Close()
}

// TestClientFindsPerftest: a client whose peer has no server, but perftest's, is told at once. What
// takes every connection and answers nothing, or something else, is no such server.
func TestClientFindsPerftest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	peer, _ := guestlib.ParseGID("127.0.0.1")
	for name, c := range map[string]struct {
		answer string
		meet   time.Duration
		want   string
	}{
		"perftest":          {"6.10", time.Hour, "at 127.0.0.1 no server waits, but a program of perftest"},
		"another version":   {"5.92", time.Hour, "at 127.0.0.1 no server waits, but a program of perftest"},
		"a proxy":           {"", 100 * time.Millisecond, "no server at 127.0.0.1"},
		"something's hello": {"SSH-2.0-OpenSSH_", 100 * time.Millisecond, "no server at 127.0.0.1"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				b := make([]byte, perftestHelloLen)
				if _, err := io.ReadFull(conn, b); err == nil && c.answer != "" {
					clear(b)
					copy(b, c.answer)
					_, _ = conn.Write(b)
				}
				_ = conn.Close()
			}
		}()
		_, err = Run(t.Context(), Config{
			Test: Test{Op: Write}, URL: "unix://" + path, Peer: peer, Meet: c.meet, Service: uint64(l.Addr().(*net.TCPAddr).Port),
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		_ = l.Close()
		<-done
	}
}

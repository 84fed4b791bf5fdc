package perf

import (
	"context"
	"errors"
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

// TestClientFindsPerftest: a client whose peer has no server, but perftest's, is told at once.
func TestClientFindsPerftest(t *testing.T) {
	perftest, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer perftest.Close()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	peer, _ := guestlib.ParseGID("127.0.0.1")
	_, err = Run(t.Context(), Config{
		Test: Test{Op: Write}, URL: "unix://" + path, Peer: peer, Meet: time.Hour, Service: uint64(perftest.Addr().(*net.TCPAddr).Port),
	})
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "at 127.0.0.1 no server waits, but a program of perftest") {
		t.Error(err)
	}
}

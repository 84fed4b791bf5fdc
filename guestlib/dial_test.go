package guestlib

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/control"
)

// TestDialWaitsForANICThatStarts: a dial bears with a host that does not answer for a while, as when
// its NIC starts again, but not for ever. Every other error ends it at once.
func TestDialWaitsForANICThatStarts(t *testing.T) {
	const kernel = 2 * time.Second // how long one dial waits for an answer
	for _, c := range []struct {
		name   string
		silent time.Duration
		then   error
		want   error
		after  time.Duration
	}{
		{name: "at once"},
		{name: "soon", silent: 5 * time.Second, after: 3 * kernel},
		{name: "too late", silent: time.Hour, want: unix.ETIMEDOUT, after: control.OpenTimeout},
		{name: "nobody listens", then: unix.ECONNRESET, want: unix.ECONNRESET},
		{name: "nobody listens then", silent: kernel, then: unix.ECONNRESET, want: unix.ECONNRESET, after: kernel},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				there, away := net.Pipe()
				defer there.Close()
				defer away.Close()
				conn, err := whenAnswered(func() (net.Conn, error) {
					if time.Since(begun) < c.silent {
						time.Sleep(kernel)
						return nil, fmt.Errorf("dial: %w", unix.ETIMEDOUT)
					}
					if c.then != nil {
						return nil, fmt.Errorf("dial: %w", c.then)
					}
					return there, nil
				})
				if !errors.Is(err, c.want) || (conn == there) != (c.want == nil) {
					t.Errorf("%v, %v", conn, err)
				}
				if after := time.Since(begun); after != c.after {
					t.Errorf("ended after %v, want %v", after, c.after)
				}
			})
		})
	}
}

// TestOpenEndsWithItsContext: also while a unix socket has accepted the connection and does not
// answer.
func TestOpenEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	var nic sync.WaitGroup
	nic.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 4096)) // the memory is handed over
		cancel()
		_, _ = conn.Read(make([]byte, 1)) // until the client gives up
	})
	if _, err := Open(ctx, "unix://"+path, Options{Memory: 1 << 20}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	nic.Wait()
}

package perf

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
)

// unmarked relays a connection to a server, and removes the mark with which our clients begin, so
// that the server takes them for a program of perftest. It returns its port.
func unmarked(t *testing.T, server string) uint64 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	carry := func(c net.Conn) {
		defer c.Close()
		hello := make([]byte, 16)
		if _, err := io.ReadFull(c, hello); err != nil {
			return
		}
		var s net.Conn
		for s == nil { // it is about to listen
			if s, err = net.Dial("tcp", server); err != nil {
				time.Sleep(time.Millisecond)
			}
		}
		defer s.Close()
		clear(hello[8:])
		_, _ = s.Write(hello)
		answer := make([]byte, 16)
		_, _ = io.ReadFull(s, answer)
		clear(answer[8:])
		_, _ = c.Write(answer)
		all.Go(func() {
			_, _ = io.Copy(s, c)
			_ = s.(*net.TCPConn).CloseWrite()
		})
		_, _ = io.Copy(c, s)
	}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { carry(c) })
		}
	})
	return uint64(l.Addr().(*net.TCPAddr).Port)
}

// freePort returns a port on which nobody listens.
func freePort(t *testing.T) uint64 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint64(l.Addr().(*net.TCPAddr).Port)
}

// asPerftest runs server and client against one NIC, each of which takes the other for a program of
// perftest.
func asPerftest(t *testing.T, server, client Config) (rows [2][]Row, text [2]string, errs [2]error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	server.Service = freePort(t)
	client.Peer, _ = guestlib.ParseGID("127.0.0.1")
	client.Service = unmarked(t, atPort("127.0.0.1", server.Service))
	var wg sync.WaitGroup
	for i, cfg := range []Config{server, client} {
		var b bytes.Buffer
		report := Report{W: &b, Test: cfg.Test}
		cfg.URL, cfg.Header, cfg.Row = "unix://"+path, report.Header, report.Row
		wg.Go(func() {
			rows[i], errs[i] = Run(ctx, cfg)
			text[i] = b.String()
		})
	}
	wg.Wait()
	return rows, text, errs
}

// TestEveryTestWorksWithPerftest: every test works with a program of perftest at the other end, as client and as
// server.
func TestEveryTestWorksWithPerftest(t *testing.T) {
	for _, test := range Tests() {
		t.Run(test.String(), func(t *testing.T) {
			t.Parallel()
			configs := map[string]Config{"plain": {Iterations: 50}}
			if !test.Latency {
				configs["lanes"] = Config{Iterations: 130, QPs: 3, TxDepth: 16, CQMod: 5}
			}
			if test.Op == Send {
				configs["events"] = Config{Iterations: 50, Events: true, RxDepth: 4}
			}
			if test == (Test{Op: Send}) || test == (Test{Op: Write, Latency: true}) { // by perftest, up to 8 MiB
				configs["all"] = Config{Iterations: 5, All: true}
			}
			for name, c := range configs {
				c.Test, c.Inline = test, -1
				rows, text, errs := asPerftest(t, c, c)
				if errs[0] != nil || errs[1] != nil {
					t.Fatal(name, errs)
				}
				_ = c.check()
				sizes := len(c.sizes())
				served := sizes // what both ends count, both measure
				switch {
				case test.Op == Send || test.Op == Write && test.Latency:
				case test.Latency:
					served = 0
				default:
					served = 1 // the client's last report
				}
				if len(rows[0]) != served || len(rows[1]) != sizes {
					t.Errorf("%s: the server has %d rows, the client %d; want %d and %d", name, len(rows[0]), len(rows[1]), served, sizes)
				}
				for _, r := range append(rows[0], rows[1]...) {
					if r.Bytes < 1 || r.Iterations != c.Iterations*c.QPs || test.Latency == (r.TTypical <= 0) || test.Latency == (r.BWMBs > 0) {
						t.Errorf("%s: %+v", name, r)
					}
				}
				for _, s := range text {
					if !strings.Contains(s, "Other end       : perftest 6.06") {
						t.Errorf("%s does not say who is at the other end:\n%s", name, s)
					}
				}
			}
		})
	}
}

// TestADisagreementWithPerftestEndsWithAdvice: a test that perftest's programs do not have is refused at once, and two
// ends with different counts do not wait for ever.
func TestADisagreementWithPerftestEndsWithAdvice(t *testing.T) {
	send, all := Test{Op: Send}, Test{Op: Write, Latency: true}
	for want, c := range map[string][2]Config{
		"leave out -c UD":                   {{Test: send, Datagrams: true}, {Test: send}},
		"leave out -b":                      {{Test: send}, {Test: send, Bidirectional: true}},
		"leave out --size":                  {{Test: all}, {Test: all, All: true, Size: 4096}},
		"instead of --duration":             {{Test: send}, {Test: send, Duration: time.Second}},
		"tell both the same --size and --i": {{Test: send, Iterations: 60}, {Test: send, Iterations: 50}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			if _, _, errs := asPerftest(t, c[0], c[1]); errs[0] == nil || errs[1] == nil || !strings.Contains(errors.Join(errs[0], errs[1]).Error(), want) {
				t.Errorf("%v", errs)
			}
		})
	}
}

// TestPerftestIsRecognised: only a client of perftest is served as one: not a client that sends
// something else, nothing, or only a part, and not a client of ours.
func TestPerftestIsRecognised(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan *perftest.Conn, 1)
	go func() { came <- acceptPerftest(t.Context(), l) }()
	zeros := strings.Repeat("\x00", 16)
	for _, hello := range []string{"", "6.1", "GET / HTTP/1.1\r\n", "vnicperf" + zeros[8:], "6.06\x00vnic" + zeros[9:], "5.30" + zeros[4:], "6.10" + zeros[4:]} {
		select {
		case p := <-came:
			t.Fatalf("before %q: %v", hello, p)
		default:
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(hello)); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = c.Read(make([]byte, 1)) // until it is hung up, or answered
	}
	p := <-came
	if p == nil || p.Version != "6.10" {
		t.Fatalf("%+v", p)
	}
	_ = p.Close()
}

// TestClientFindsPerftest: a client keeps looking for its server if another program accepts the
// connections, and fails at once if a program of perftest is too old.
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
		"too old":           {"5.30", time.Hour, "has version 5.30; 5.33 is the oldest"},
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
				b := make([]byte, 16)
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

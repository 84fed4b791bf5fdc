package qemu

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// ask connects to a socket of Forward and writes a line. It returns what it reads up to the end of the
// answer's line.
func ask(t *testing.T, path, line string) (net.Conn, string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, line); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(answer), "\n"); answer = append(answer, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			break
		}
	}
	return c, string(answer)
}

// TestProgramsOfTheHostReachPortsOfTheGuest: what comes with the request goes to the guest, and each end
// hears that the other has no more to say.
func TestProgramsOfTheHostReachPortsOfTheGuest(t *testing.T) {
	v, _ := startBackend(t)
	path := filepath.Join(t.TempDir(), "vsock")
	if err := v.Forward(path); err != nil {
		t.Fatal(err)
	}
	g := startGuest(t, v, vhosttest.Options{})
	l, err := g.Listen(22)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%s world", b)
		c.Close()
	}()
	c, answer := ask(t, path, "CONNECT 22\nhello")
	if answer != "OK 22\n" {
		t.Fatalf("answer %q", answer)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); string(b) != "hello world" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// TestWhatTheGuestDoesNotTakeEnds: a port without a listener, and what is no request, get no answer.
func TestWhatTheGuestDoesNotTakeEnds(t *testing.T) {
	v, _ := startBackend(t)
	path := filepath.Join(t.TempDir(), "vsock")
	if err := v.Forward(path); err != nil {
		t.Fatal(err)
	}
	startGuest(t, v, vhosttest.Options{})
	for _, line := range []string{"CONNECT 23\n", "CONNECT x\n", "CONNECT 4294967296\n", "GET / HTTP/1.1\n", "\n", strings.Repeat("C", 1000) + "\n"} {
		if _, answer := ask(t, path, line); answer != "" {
			t.Errorf("%q: answer %q", line, answer)
		}
	}
	silent, err := net.Dial("unix", path) // must not keep it from closing for long
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

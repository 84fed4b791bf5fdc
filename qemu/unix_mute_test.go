package qemu

import (
	"io"
	"net"
	"testing"
)

// Clients that connect and say nothing hold up nobody. The oldest make room, and a client that
// speaks is served while as many as there may be are still waited for.
func TestUnixMuteClients(t *testing.T) {
	a, path := listenUnix(t)
	u := a.(*unixAttachment)
	var mute []net.Conn
	for range 4 * maxHandshakes {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		mute = append(mute, c)
	}
	for range 3 {
		_, status, reason := attachClient(t, path, preambleOf(0))
		if status != 0 {
			t.Fatalf("refused: %s", reason)
		}
		u.mu.Lock()
		waiting := len(u.busy)
		u.mu.Unlock()
		if waiting < maxHandshakes-1 {
			t.Errorf("%d clients are waited for, want %d: the mute ones went first", waiting, maxHandshakes)
		}
		s, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	for _, c := range mute[:2*maxHandshakes] {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Fatalf("an old mute client is still connected: %d bytes, %v", n, err)
		}
	}
}

package cmlink

import (
	"fmt"
	"testing"
	"time"
)

// TestEitherNICCanDial: the NIC whose name comes second reaches the first one if the first does not
// dial it: it does not know its address, or cannot reach it there. It does so again after a cut.
func TestEitherNICCanDial(t *testing.T) {
	for name, c := range map[string]struct{ addr, listen string }{
		"the first has no address": {"", "127.0.0.1:0"},
		"the first cannot reach":   {"127.0.0.1:1", "127.0.0.1:0"},
		"the second listens not":   {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			first := Config{Patience: 10 * time.Millisecond, Listen: "127.0.0.1:0", Identity: identity(t, "1"), Peers: []Peer{{ID: 2, Name: "2", Addr: c.addr}}}
			a, ra := start(t, first)
			second := Config{Patience: 10 * time.Millisecond, Listen: c.listen, Identity: identity(t, "2"), Peers: []Peer{{ID: 1, Name: "1", Addr: a.Addr().String()}}}
			b, rb := start(t, second)
			for i := range 3 {
				ra.wait("up 2")
				rb.wait("up 1")
				msg := fmt.Sprint(i)
				if err := b.Send(1, []byte(msg)); err != nil {
					t.Fatal(err)
				}
				ra.wait("msg 2 " + msg)
				a.End(2, ErrDown)
				ra.wait("down 2")
				rb.wait("down 1")
			}
		})
	}
}

// TestNICsThatDialEachOtherAgree: if both dial at the same time, both keep the same connection.
func TestNICsThatDialEachOtherAgree(t *testing.T) {
	var both [2]*Link
	for i := range both {
		both[i], _ = start(t, Config{Patience: time.Nanosecond, Listen: "127.0.0.1:0", Identity: identity(t, fmt.Sprint(i+1))})
	}
	for i, l := range both {
		if err := l.Set(Peer{ID: uint32(2 - i), Name: fmt.Sprint(2 - i), Addr: both[1-i].Addr().String()}); err != nil {
			t.Fatal(err)
		}
	}
	var was [2]string
	for round := range 50 {
		await(t, "one connection", func() bool {
			a, b := both[0].ends(2), both[1].ends(1)
			if a == was || a == [2]string{} || a[0] != b[1] || a[1] != b[0] {
				return false
			}
			was = a
			return true
		})
		both[round%2].End(uint32(2-round%2), ErrDown)
		both[1-round%2].End(uint32(1+round%2), ErrDown)
	}
}

// ends returns the addresses of both ends of the connection to a peer that is up.
func (l *Link) ends(id uint32) (e [2]string) {
	p := l.peer(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.session; s != nil {
		e = [2]string{s.raw.LocalAddr().String(), s.raw.RemoteAddr().String()}
	}
	return e
}

// TestAPeerThatIsRemovedWhileTheyConnectHearsIt: a peer that has the link already, while the NIC that removes it has
// not, is told like any other.
func TestAPeerThatIsRemovedWhileTheyConnectHearsIt(t *testing.T) {
	b, rb := accepting(t, nil)
	peer := Peer{ID: 2, Name: "2", Addr: b.Addr().String()}
	a, _ := start(t, Config{Identity: identity(t, "1"), Farewell: []byte("bye")})
	for range 100 {
		if err := a.Set(peer); err != nil {
			t.Fatal(err)
		}
		rb.wait("up 1")
		_ = a.Send(peer.ID, []byte("bye")) // on the link, if there is one
		a.Remove(peer.ID)
		rb.wait("msg 1 bye")
		rb.wait("down 1")
	}
}

// TestAPeerThatWaitsIsDialed: a NIC that was turned away, since it was no peer yet, or whose link was ended,
// since it was none any more, waits before it dials again. When it becomes a peer it is dialed at once, also by
// the NIC whose name comes second.
func TestAPeerThatWaitsIsDialed(t *testing.T) {
	var both [2]*Link
	var seen [2]*recorder
	for i := range both {
		seen[i] = newRecorder(t)
		var err error
		both[i], err = New(Config{Listen: "127.0.0.1:0", Identity: identity(t, fmt.Sprint(i+1)), Patience: time.Hour, BackoffMin: time.Hour, BackoffMax: time.Hour}, seen[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = both[i].Close() })
	}
	// becomes makes the other one a peer of a NIC.
	becomes := func(i int) {
		t.Helper()
		other := 1 - i
		if err := both[i].Set(Peer{ID: uint32(other + 1), Name: fmt.Sprint(other + 1), Addr: both[other].Addr().String()}); err != nil {
			t.Fatal(err)
		}
	}
	up := func() {
		t.Helper()
		seen[0].wait("up 2")
		seen[1].wait("up 1")
	}
	becomes(0)
	await(t, "a refusal", func() bool { return both[1].Stats().RefusedIdentity > 0 && both[0].Stats().HandshakeFailed > 0 })
	becomes(1)
	up()
	for range 3 {
		both[1].Remove(1)
		seen[1].wait("down 1")
		seen[0].wait("down 2")
		becomes(1)
		up()
	}
	// Both have removed the other. The first one that adds it again is turned away.
	both[0].Remove(2)
	both[1].Remove(1)
	seen[0].wait("down 2")
	seen[1].wait("down 1")
	becomes(0)
	await(t, "a refusal", func() bool { return both[1].Stats().RefusedIdentity > 1 })
	becomes(1)
	up()
}

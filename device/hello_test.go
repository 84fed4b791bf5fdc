package device

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// helloConn is the device's end of a stream whose driver says hello.
type helloConn struct {
	net.Conn
	attached func()       // called when the driver has its function, before the answer
	answer   func() error // called before each write, which fails if it does

	mu        sync.Mutex
	deadlines []time.Time   // of reads
	ended     chan struct{} // closed with the first deadline that is for reads alone
}

func (c *helloConn) note(at time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadlines = append(c.deadlines, at)
	return len(c.deadlines)
}

// last returns the deadline in force.
func (c *helloConn) last() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadlines[len(c.deadlines)-1]
}

func (c *helloConn) SetDeadline(at time.Time) error {
	c.note(at)
	return c.Conn.SetDeadline(at)
}

func (c *helloConn) SetReadDeadline(at time.Time) error {
	if c.note(at) == 2 { // after the one for the hello
		close(c.ended)
	}
	return c.Conn.SetReadDeadline(at)
}

func (c *helloConn) Write(b []byte) (int, error) {
	if err := c.answer(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Identity implements queues.Session.
func (c *helloConn) Identity() queues.Identity { return queues.Identity{Transport: "process", PID: 1} }

// Watch implements queues.Session.
func (c *helloConn) Watch(f func(queues.Regions)) (stop func()) {
	f(queues.NewRegions(nil))
	c.attached()
	return func() {}
}

// silent is a channel whose driver sends nothing.
type silent struct{}

func (silent) Expect(time.Duration) {}
func (silent) Drop()                {}
func (silent) End()                 {}

// TestALateHelloGetsNoAnswer checks that a stream without a complete hello in time is closed
// without an answer (DRV-202).
func TestALateHelloGetsNoAnswer(t *testing.T) {
	n, stop := runAlone(t, func(*config.Config) {})
	defer stop()
	hello := abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor, Function: 1<<16 | 1})
	for _, part := range [][]byte{nil, hello[:1], hello[:len(hello)-1]} {
		near, far := net.Pipe()
		must(t, far.SetDeadline(time.Now().Add(testTime)))
		c := &helloConn{Conn: near, ended: make(chan struct{}), attached: func() {}, answer: func() error { return nil }}
		sessions, from := &guest.Sessions{HelloTimeout: 50 * time.Millisecond}, guest.Key{Attachment: "test"}
		stream := guest.NewStream(c, guest.StreamConfig{NIC: n.guestNIC(), Sessions: sessions, Attachment: "bare", From: from, Log: func(string, ...any) {}})
		over := make(chan struct{})
		if !sessions.Start(stream, from, 1, func() { stream.Serve(); close(over) }) {
			t.Fatal("no room for the session")
		}
		if len(part) > 0 {
			_, _ = far.Write(part) // the time may be over already
		}
		if got, err := io.ReadAll(far); err != nil || len(got) != 0 {
			t.Errorf("%d bytes of a hello: answered %x, %v", len(part), got, err)
		}
		<-over
		must(t, far.Close())
	}
}

// TestAHelloAttachesTheDriverOrFreesTheFunction checks that a driver that has its function has no deadline any more, unless its
// session is to end. If the answer cannot be written, or the hello was too late, the function is
// free for others.
func TestAHelloAttachesTheDriverOrFreesTheFunction(t *testing.T) {
	n, stop := runAlone(t, func(*config.Config) {})
	defer stop()
	const ours, anothers = 1<<16 | 1, 1<<16 | 3
	attached := func() (names []string) {
		list, err := n.Functions(t.Context())
		must(t, err)
		for _, f := range list {
			if f.Attached != "" {
				names = append(names, f.ID)
			}
		}
		return names
	}
	for _, x := range []struct {
		name     string
		function uint32
		begin    func(c *helloConn, s *guest.Sessions)
		drive    func(t *testing.T, c *helloConn, d *rawClient)
		want     []string // log lines
	}{
		{"attached", ours, func(*helloConn, *guest.Sessions) {}, func(t *testing.T, c *helloConn, d *rawClient) {
			if r := d.hello(ours); r.Status != abi.StatusOK {
				t.Fatalf("%+v", r)
			}
			d.register(abi.RegState, 4) // the hello is over
			if at := c.last(); !at.IsZero() || len(attached()) != 1 {
				t.Errorf("a deadline at %v; attached are %v", at, attached())
			}
			d.send(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
		}, []string{"guest attached", "guest left"}},
		{"its sessions end meanwhile", ours, func(c *helloConn, s *guest.Sessions) {
			c.answer = sync.OnceValue(func() error {
				go s.CloseAll()
				<-c.ended
				return nil
			})
		}, func(t *testing.T, _ *helloConn, d *rawClient) {
			if r := d.hello(ours); r.Status != abi.StatusOK {
				t.Fatalf("%+v", r)
			}
		}, []string{"guest attached", "guest left"}},
		{"another's function", anothers, func(*helloConn, *guest.Sessions) {}, func(t *testing.T, c *helloConn, d *rawClient) {
			if r := d.hello(anothers); r.Status != abi.StatusDenied || c.last().IsZero() {
				t.Errorf("%+v, until %v", r, c.last())
			}
			d.expectEnd()
		}, []string{"guest refused: denied: function h1.pf0.vf3 is not assigned"}},
		{"it takes no answer", ours, func(c *helloConn, _ *guest.Sessions) {
			c.answer = func() error { return errors.New("it is gone") }
		}, func(_ *testing.T, _ *helloConn, d *rawClient) {
			d.send(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor, Function: ours}))
		}, []string{"guest refused: hello not answered: it is gone"}},
		{"it takes no refusal", anothers, func(c *helloConn, _ *guest.Sessions) {
			c.answer = func() error { return errors.New("it is gone") }
		}, func(_ *testing.T, _ *helloConn, d *rawClient) {
			d.send(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor, Function: anothers}))
		}, []string{"guest refused: denied: function h1.pf0.vf3 is not assigned"}},
		{"it was closed to make room for others", ours, func(c *helloConn, s *guest.Sessions) {
			c.attached = func() { s.Start(silent{}, guest.Key{Attachment: "test"}, 1, func() {}) }
		}, func(_ *testing.T, _ *helloConn, d *rawClient) {
			d.send(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor, Function: ours}))
		}, []string{"guest refused: it said hello too late"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			must(t, far.SetDeadline(time.Now().Add(testTime)))
			c := &helloConn{Conn: near, ended: make(chan struct{}), attached: func() {}, answer: func() error { return nil }}
			var log []string
			tell := func(msg string, args ...any) {
				if msg == "guest refused" {
					msg += fmt.Sprint(": ", args[len(args)-1])
				}
				log = append(log, msg)
			}
			sessions, from, over := &guest.Sessions{HelloTimeout: testTime}, guest.Key{Attachment: "test"}, make(chan struct{})
			stream := guest.NewStream(c, guest.StreamConfig{NIC: n.guestNIC(), Sessions: sessions, Attachment: "bare", From: from, Log: tell})
			x.begin(c, sessions)
			if !sessions.Start(stream, from, 1, func() { stream.Serve(); close(over) }) {
				t.Fatal("no room for the session")
			}
			x.drive(t, c, &rawClient{t: t, conn: far})
			select {
			case <-over:
			case <-time.After(testTime):
				t.Fatal("the session does not end")
			}
			same := len(log) == len(x.want)
			for i := 0; same && i < len(log); i++ {
				same = strings.HasPrefix(log[i], x.want[i])
			}
			if !same {
				t.Errorf("logged %q, want %q", log, x.want)
			}
			if left := attached(); len(left) != 0 {
				t.Errorf("%v have drivers still", left)
			}
		})
	}
}

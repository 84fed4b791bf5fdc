package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// rawClient is a client that knows only the framing, so that it can send anything.
type rawClient struct {
	t    testing.TB
	conn net.Conn
	mem  []byte // shared with the device, at device address 0
}

// dialRaw attaches with one memfd of 64 KiB at device address 0.
func dialRaw(t testing.TB, socket string) *rawClient {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const size = 64 << 10
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTime))
	pre := []byte("VNICMEM1")
	pre = binary.LittleEndian.AppendUint32(pre, 1)
	pre = binary.LittleEndian.AppendUint32(pre, 0)
	for _, v := range []uint64{0, size, 0} {
		pre = binary.LittleEndian.AppendUint64(pre, v)
	}
	if _, _, err := c.WriteMsgUnix(pre, unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
	var answer [8]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil || answer != [8]byte{} {
		t.Fatalf("preamble answered %x, %v", answer, err)
	}
	return &rawClient{t, c, mem}
}

func (c *rawClient) send(b []byte) {
	c.t.Helper()
	// The device may have hung up in the middle, which some tests want.
	_, _ = c.conn.Write(b)
}

func (c *rawClient) receive() (abi.MsgHeader, []byte, error) {
	return abi.ReadMessage(c.conn, make([]byte, abi.MaxMessage))
}

// hello asks for a function and returns the answer.
func (c *rawClient) hello(function uint32) abi.HelloReply {
	c.t.Helper()
	c.send(abi.AppendStruct(nil, 77, &abi.Hello{Major: abi.VersionMajor, Function: function}))
	h, body, err := c.receive()
	if err != nil || h.Type != abi.MsgHelloReply || h.Tag != 77 {
		c.t.Fatalf("%+v, %v", h, err)
	}
	var r abi.HelloReply
	r.Unmarshal(body)
	return r
}

// expectEnd reads until the stream ends and returns the text of the last message if that was an
// error.
func (c *rawClient) expectEnd() (reason string) {
	c.t.Helper()
	for {
		h, body, err := c.receive()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				c.t.Fatal("the device did not hang up")
			}
			return reason
		}
		if h.Type == abi.MsgError {
			var m abi.ErrorMsg
			m.Unmarshal(body)
			reason = abi.Text(m.Reason[:])
		}
	}
}

// TestAGuestAttachesToItsOwnFreeFunctionOnly checks DEV-104, DEV-202 and DEV-203.
func TestAGuestAttachesToItsOwnFreeFunctionOnly(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name     string
		function uint32
		want     abi.Status
	}{
		{"of a guest that is not us", 1<<16 | 3, abi.StatusDenied},
		{"of nobody", 1 << 16, abi.StatusDenied},
		{"that does not exist", 1<<16 | 99, abi.StatusNotFound},
		{"of another NIC", 2<<16 | 1, abi.StatusNotFound},
		{"out of range", 1 << 24, abi.StatusNotFound},
		{"ours, full number", 1<<16 | 1, abi.StatusOK},
		{"ours, without host", 2, abi.StatusOK},
		{"the assigned one", abi.FunctionAssigned, abi.StatusOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialRaw(t, w.sockets[0])
			r := c.hello(tc.function)
			if r.Status != tc.want || r.Major != abi.VersionMajor {
				t.Fatalf("%+v, want %s", r, tc.want)
			}
			if tc.want != abi.StatusOK {
				if why := c.expectEnd(); !strings.Contains(why, "function") {
					t.Errorf("refused without a reason: %q", why)
				}
				return
			}
			if r.Function>>16 != 1 {
				t.Errorf("attached to %#x", r.Function)
			}
			second := dialRaw(t, w.sockets[0])
			if r := second.hello(r.Function); r.Status != abi.StatusBusy {
				t.Errorf("second session: %s", r.Status)
			}
			if why := second.expectEnd(); !strings.Contains(why, "is attached to") {
				t.Errorf("second session: %q", why)
			}
			c.send(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
			c.expectEnd()
		})
	}
	c := dialRaw(t, w.sockets[0])
	c.send(abi.AppendStruct(nil, 1, &abi.Hello{Major: 9, Function: 1}))
	_, body, err := c.receive()
	var r abi.HelloReply
	if err == nil {
		r.Unmarshal(body)
	}
	if r.Status != abi.StatusVersionMismatch || r.Major != abi.VersionMajor {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAssignedOfAll checks that a guest that names no function gets the first free one of its own,
// on any shard.
func TestAssignedOfAll(t *testing.T) {
	useShards(t, 2)
	w := newWorld(t)
	for _, want := range []uint32{1<<16 | 1, 1<<16 | 2, 1<<16 | 4} {
		if r := dialRaw(t, w.sockets[0]).hello(abi.FunctionAssigned); r.Status != abi.StatusOK || r.Function != want {
			t.Fatalf("%+v, want function %#x", r, want)
		}
	}
	if r := dialRaw(t, w.sockets[0]).hello(abi.FunctionAssigned); r.Status == abi.StatusOK {
		t.Errorf("a fourth: %+v", r)
	}
}

// TestGuestlibTellsWhyAHelloWasRefused checks that guestlib's error has the device's reason.
func TestGuestlibTellsWhyAHelloWasRefused(t *testing.T) {
	w := newWorld(t)
	d := w.open(0, "pf0.vf1")
	defer d.Close()
	for function, want := range map[string]string{
		"pf0.vf1": "is attached to", "pf0.vf3": "is not assigned to", "pf0.vf7": "there is no function",
	} {
		_, err := guestlib.Open(testContext(t), "unix://"+w.sockets[0]+"?function="+function, guestlib.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", function, err, want)
		}
	}
	d.Close()
	for driver, want := range map[string]string{"mine": `by "mine"`, "vnic.ko": "whose kernel driver has it (vnic.ko): rmmod vnic there"} {
		url := "unix://" + w.sockets[0] + "?function=pf0.vf1"
		first, err := guestlib.Open(testContext(t), url, guestlib.Options{Driver: driver})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := guestlib.Open(testContext(t), url, guestlib.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", driver, err, want)
		}
		first.Close()
	}
}

// TestASessionThatSendsNonsenseEndsAlone checks that guests that send nonsense are disconnected with a reason, and
// that a connection on the same NIC works meanwhile. (DEV-207)
func TestASessionThatSendsNonsenseEndsAlone(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	r := rand.New(devicetest.Seeded(5))
	noise := make([]byte, 5000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	const vf2 = 1<<16 | 2
	for _, tc := range []struct {
		name   string
		hello  bool
		bytes  []byte
		reason string
	}{
		{"noise for a hello", false, noise, ""},
		{"no hello", false, abi.AppendStruct(nil, 1, &abi.RegRead{Offset: 0, Width: 4}), ""},
		{"short hello", false, abi.AppendMessage(nil, abi.MsgHello, 1, []byte{1, 2, 3}), ""},
		{"noise", true, noise, "MaxMessage"},
		{"message without header", true, []byte{3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "too short"},
		{"unknown message", true, abi.AppendMessage(nil, 500, 1, nil), "message type 500"},
		{"device's message", true, abi.AppendStruct(nil, 1, &abi.RegReply{}), "not for a driver"},
		{"second hello", true, abi.AppendStruct(nil, 1, &abi.Hello{Major: 1}), "not for a driver"},
		{"short register read", true, abi.AppendMessage(nil, abi.MsgRegRead, 1, []byte{1}), "too short"},
		{"half a doorbell", true, abi.AppendMessage(nil, abi.MsgDoorbell, 1, make([]byte, 8)), "doorbell message of 8 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialRaw(t, w.sockets[0])
			if tc.hello {
				if r := c.hello(vf2); r.Status != abi.StatusOK {
					t.Fatal(r.Status)
				}
			}
			c.send(tc.bytes)
			if !tc.hello {
				_ = c.conn.(*net.UnixConn).CloseWrite()
			}
			if reason := c.expectEnd(); !strings.Contains(reason, tc.reason) {
				t.Errorf("reason %q, want %q", reason, tc.reason)
			}
			if tc.hello {
				list, err := w.nics[0].Functions(context.Background())
				if err != nil || list[2].State != abi.StateError.String() || !strings.Contains(list[2].Fault, tc.reason) {
					t.Errorf("%+v, %v", list[2], err)
				}
			}
			a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 9000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		})
	}
	// The function that was in ERROR serves the next guest.
	newEndpoint(t, w.open(0, "pf0.vf2"))
}

// TestRequestsWithoutReading checks that a guest that sends requests and never reads answers is
// blocked at its own socket and delays nobody else. (DEV-205)
func TestRequestsWithoutReading(t *testing.T) {
	w := newWorld(t)
	c := dialRaw(t, w.sockets[0])
	if r := c.hello(1<<16 | 2); r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	ask := bytes.Repeat(abi.AppendStruct(nil, 1, &abi.RegRead{Offset: abi.RegState, Width: 4}), 1000)
	for {
		if _, err := c.conn.Write(ask); err != nil {
			break // the socket is full: the device takes no more
		}
	}
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 100)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
}

// TestAClientThatDiesFreesItsFunction checks that a client that vanishes in the middle of its work leaves its function
// free, and that its peer is told. (DEV-208)
func TestAClientThatDiesFreesItsFunction(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	for range 8 {
		if err := a.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.dev.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.qp.Down():
	case <-testContext(t).Done():
		t.Fatal("the peer was not told")
	}
	w.until("function free", func() bool {
		list, err := w.nics[0].Functions(context.Background())
		return err == nil && list[1].State == abi.StateReset.String() && list[1].QPs == 0
	})
	a2, b2 := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf2"))
	connect(t, a2, b2, 2)
	a2.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a2.mr.SGE(0, 100)}, RemoteAddr: b2.mr.Addr(), RKey: b2.mr.RKey()})
}

// TestTenantsCannotReachEachOther checks that functions with the same address in different tenants are different
// functions, and that a tenant not shared with the peer is not reachable. (DEV-906)
func TestTenantsCannotReachEachOther(t *testing.T) {
	w := newWorld(t)
	a := newEndpoint(t, w.open(0, "pf0.vf4")) // tenant 8, the address of VF 1
	b := newEndpoint(t, w.open(1, "pf0.vf1"))
	if _, err := b.dev.Listen(testContext(t), 9); err != nil {
		t.Fatal(err)
	}
	if _, err := a.dev.Connect(testContext(t), a.qp, b.dev.GID(), 9, nil); !errors.Is(err, guestlib.ErrUnreachable) {
		t.Errorf("connection across tenants: %v", err)
	}
}

// TestANICThatComesBackIsFoundAgain checks that a NIC that dies and comes back is found again.
func TestANICThatComesBackIsFoundAgain(t *testing.T) {
	w := newWorld(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 1)
	cfg, id := w.nics[1].cfg, w.nics[1].deps.Identity
	if err := w.stop[1](); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.qp.Down():
	case <-testContext(t).Done():
		t.Fatal("the peer was not told")
	}
	b.dev.Close() // it would reconnect by itself and take the function
	w.start(1, cfg, Deps{Identity: id})
	w.waitPeers()
	a2, b2 := newEndpoint(t, a.dev), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a2, b2, 2)
	a2.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a2.mr.SGE(0, 100000)}, RemoteAddr: b2.mr.Addr(), RKey: b2.mr.RKey()})
}

// TestTooManyStreams checks that a guest may keep a few streams without a hello. If there are more,
// the oldest of them are ended, so they delay nobody, and streams with a function continue.
func TestTooManyStreams(t *testing.T) {
	w := newWorld(t)
	d := w.open(0, "pf0.vf1")
	limit := spareSessions + w.nics[0].units.functions()
	var mute []*rawClient
	for range limit - 1 + 20 {
		before := w.streams(0)
		mute = append(mute, dialRaw(t, w.sockets[0]))
		w.until("the stream is served before the next", func() bool { return w.streams(0) > before })
	}
	for _, c := range mute[:20] {
		c.expectEnd()
	}
	newEndpoint(t, w.open(0, "pf0.vf2"))
	newEndpoint(t, d)
	if st := mute[len(mute)-1].hello(abi.FunctionAssigned).Status; st != abi.StatusOK {
		t.Errorf("the newest of those that said nothing says hello: %s", st)
	}
}

// streams returns how many control streams NIC i has served so far.
func (w *world) streams(i int) uint64 {
	return w.nics[i].sessions.Begun()
}

// TestAStreamWithoutAHelloEnds checks that a stream without a hello ends after a time, even without other
// streams.
func TestAStreamWithoutAHelloEnds(t *testing.T) {
	w := newWorld(t)
	cfg, id := w.nics[0].cfg, w.nics[0].deps.Identity
	if err := w.stop[0](); err != nil {
		t.Fatal(err)
	}
	w.helloTimeout = time.Millisecond
	w.start(0, cfg, Deps{Identity: id})
	dialRaw(t, w.sockets[0]).expectEnd()
}

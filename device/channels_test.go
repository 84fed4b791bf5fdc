package device

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/guest/inprocess"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// carried is a driver whose control messages use one kind of channel.
type carried interface {
	read(offset, width uint32) (uint64, abi.Status)
	write(offset, width uint32, value uint64) abi.Status
	ring(kind abi.DoorbellKind, queue, index uint32)
	// event waits for events: of completion queues, or others.
	event() (cqs []uint32, async []abi.AsyncEvent)
	memory() []byte // at device address 0
	leave()
	over() // waits until the device has ended the session
}

// channels attaches a driver to NIC 0 over each kind of channel. why is the reason of a refusal.
var channels = map[string]func(w *world, function uint32) (d carried, features uint64, st abi.Status, why string){
	"stream":     attachStream,
	"in process": attachInProcess,
	"window":     attachWindow,
}

// streamed is a driver on a unix socket.
type streamed struct {
	*rawClient
	tag   uint64
	cqs   []uint32 // events that came before an answer
	async []abi.AsyncEvent
}

func attachStream(w *world, function uint32) (carried, uint64, abi.Status, string) {
	return sayHello(&streamed{rawClient: dialRaw(w.t, w.sockets[0])}, function)
}

// windowed is a session over the control block of a window.
type windowed struct {
	*control.Conn
	mem []byte
}

// Identity implements queues.Session.
func (windowed) Identity() queues.Identity { return queues.Identity{Transport: "process", PID: 1} }

// Watch implements queues.Session.
func (d windowed) Watch(f func(queues.Regions)) (stop func()) {
	f(queues.NewRegions([]queues.Region{{Mem: d.mem}}))
	return func() {}
}

func attachWindow(w *world, function uint32) (carried, uint64, abi.Status, string) {
	w.t.Helper()
	n, block, mem, irq := w.nics[0], make([]byte, control.Size), make([]byte, 64<<10), make(chan struct{}, 1)
	l, err := control.Listen(control.Config{Block: block, Name: "window", Clear: func() {}, Interrupt: func() {
		select {
		case irq <- struct{}{}:
		default:
		}
	}})
	must(w.t, err)
	c, err := control.Driver{Block: block, Number: rand.Uint32(), Call: func() { go l.Look() }, Interrupts: irq, After: time.After}.Dial(w.t.Context())
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	conn, err := l.Accept()
	must(w.t, err)
	from := guest.Key{Attachment: "window"}
	stream := guest.NewStream(windowed{conn, mem}, guest.StreamConfig{NIC: n.guestNIC(), Sessions: &n.sessions, Attachment: "bare", From: from, Log: n.guestLog})
	if !n.sessions.Start(stream, from, 100, stream.Serve) {
		w.t.Fatal("no room for the session")
	}
	return sayHello(&streamed{rawClient: &rawClient{w.t, c, mem}}, function)
}

func sayHello(d *streamed, function uint32) (carried, uint64, abi.Status, string) {
	d.send(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor, Function: function, Features: ^uint64(0)}))
	var r abi.HelloReply
	d.take(func(h *abi.MsgHeader, body []byte) bool { r.Unmarshal(body); return h.Type == abi.MsgHelloReply })
	why := ""
	if r.Status != abi.StatusOK {
		why = d.expectEnd()
	}
	return d, r.Features, r.Status, why
}

// take handles messages until last returns true.
func (d *streamed) take(last func(h *abi.MsgHeader, body []byte) bool) {
	d.t.Helper()
	for {
		h, body, err := d.receive()
		if err != nil {
			d.t.Fatal(err)
		}
		switch h.Type {
		case abi.MsgCQEvent:
			for ; len(body) >= 4; body = body[4:] {
				d.cqs = append(d.cqs, binary.LittleEndian.Uint32(body))
			}
		case abi.MsgAsyncEvent:
			var e abi.AsyncEvent
			e.Unmarshal(body)
			d.async = append(d.async, e)
		}
		if last(&h, body) {
			return
		}
	}
}

func (d *streamed) access(m abi.Message) (r abi.RegReply) {
	d.t.Helper()
	d.tag++
	d.send(abi.AppendStruct(nil, d.tag, m))
	d.take(func(h *abi.MsgHeader, body []byte) bool {
		if h.Type == abi.MsgRegReply {
			r.Unmarshal(body)
		}
		return h.Type == abi.MsgRegReply && h.Tag == d.tag
	})
	return r
}

func (d *streamed) read(offset, width uint32) (uint64, abi.Status) {
	r := d.access(&abi.RegRead{Offset: offset, Width: width})
	return r.Value, r.Status
}

func (d *streamed) write(offset, width uint32, value uint64) abi.Status {
	return d.access(&abi.RegWrite{Offset: offset, Width: width, Value: value}).Status
}

func (d *streamed) ring(kind abi.DoorbellKind, queue, index uint32) {
	var b [abi.DoorbellSize]byte
	(&abi.Doorbell{Kind: kind, Queue: queue, Index: index}).Marshal(b[:])
	d.send(abi.AppendMessage(nil, abi.MsgDoorbell, 0, b[:]))
}

func (d *streamed) event() (cqs []uint32, async []abi.AsyncEvent) {
	if len(d.cqs)+len(d.async) == 0 {
		d.take(func(h *abi.MsgHeader, _ []byte) bool { return h.Type == abi.MsgCQEvent || h.Type == abi.MsgAsyncEvent })
	}
	cqs, async, d.cqs, d.async = d.cqs, d.async, nil, nil
	return cqs, async
}

func (d *streamed) memory() []byte { return d.mem }

func (d *streamed) leave() {
	d.send(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
	d.expectEnd()
}

func (d *streamed) over() { d.expectEnd() }

// called is a driver in this process.
type called struct {
	t      testing.TB
	ch     *inprocess.Channel
	mem    []byte
	served chan struct{}
}

// Identity implements guest.Guest.
func (d *called) Identity() queues.Identity { return queues.Identity{Transport: "process", PID: 1} }

// Watch implements guest.Guest.
func (d *called) Watch(f func(queues.Regions)) (stop func()) {
	f(queues.NewRegions([]queues.Region{{Mem: d.mem}}))
	return func() {}
}

func attachInProcess(w *world, function uint32) (carried, uint64, abi.Status, string) {
	n, from := w.nics[0], guest.Key{Attachment: "in process"}
	d := &called{t: w.t, mem: make([]byte, 64<<10), served: make(chan struct{})}
	ch, err := inprocess.Open(n.guestNIC(), d, from, "bare", &abi.Hello{Major: abi.VersionMajor, Function: function, Features: ^uint64(0)})
	var no *guest.Refusal
	switch {
	case errors.As(err, &no):
		return d, 0, no.Status, no.Why
	case err != nil:
		w.t.Fatal(err)
	}
	d.ch = ch
	if !n.sessions.Start(ch, from, 100, func() { defer close(d.served); ch.Serve() }) {
		w.t.Fatal("no room for the session")
	}
	w.t.Cleanup(ch.End)
	return d, ch.Session().Features(), abi.StatusOK, ""
}

func (d *called) read(offset, width uint32) (uint64, abi.Status) {
	v, st, err := d.ch.Read(offset, width)
	must(d.t, err)
	return v, st
}

func (d *called) write(offset, width uint32, value uint64) abi.Status {
	st, err := d.ch.Write(offset, width, value)
	must(d.t, err)
	return st
}

func (d *called) ring(kind abi.DoorbellKind, queue, index uint32) { d.ch.Ring(kind, queue, index) }

func (d *called) event() (cqs []uint32, async []abi.AsyncEvent) {
	cqs, async, err := d.ch.Events()
	must(d.t, err)
	return cqs, async
}

func (d *called) memory() []byte { return d.mem }

func (d *called) leave() {
	d.ch.End()
	<-d.served
}

func (d *called) over() {
	if _, _, err := d.ch.Events(); !errors.Is(err, inprocess.ErrEnded) {
		d.t.Errorf("events of a session that is over: %v", err)
	}
	<-d.served
	if _, _, err := d.ch.Read(abi.RegState, 4); !errors.Is(err, inprocess.ErrEnded) {
		d.t.Errorf("a register of a session that is over: %v", err)
	}
}

// eachChannel runs a test over each kind of channel: drivers see no difference.
func eachChannel(t *testing.T, test func(t *testing.T, w *world, attach func(function uint32) (carried, uint64, abi.Status, string))) {
	for name, attach := range channels {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test(t, w, func(function uint32) (carried, uint64, abi.Status, string) { return attach(w, function) })
		})
	}
}

// TestADriverGetsItsFunctionOrAReason checks that a driver gets its function, or a status and a
// reason.
func TestADriverGetsItsFunctionOrAReason(t *testing.T) {
	eachChannel(t, func(t *testing.T, _ *world, attach func(uint32) (carried, uint64, abi.Status, string)) {
		for _, tc := range []struct {
			function uint32
			want     abi.Status
			why      string
		}{
			{1<<16 | 3, abi.StatusDenied, "not assigned"},
			{1<<16 | 99, abi.StatusNotFound, "no function"},
			{1<<16 | 1, abi.StatusOK, ""},
			{2, abi.StatusOK, ""},
			{abi.FunctionAssigned, abi.StatusOK, ""},
		} {
			d, features, st, why := attach(tc.function)
			if st != tc.want || !strings.Contains(why, tc.why) {
				t.Fatalf("function %#x: %s, %q", tc.function, st, why)
			}
			if st != abi.StatusOK {
				continue
			}
			number, _ := d.read(abi.RegFunction, 4)
			if number>>16 != 1 || features != guest.Features {
				t.Errorf("function %#x: got %#x with features %#x", tc.function, number, features)
			}
			if _, _, st, why := attach(uint32(number)); st != abi.StatusBusy || !strings.Contains(why, "is attached to") {
				t.Errorf("a second driver: %s, %q", st, why)
			}
			d.leave()
		}
	})
}

// TestADriverLeavesItsFunctionFree checks that a driver can enable its function, run a command, is told of a fault,
// and leaves; the next driver finds the function free.
func TestADriverLeavesItsFunctionFree(t *testing.T) {
	eachChannel(t, func(t *testing.T, w *world, attach func(uint32) (carried, uint64, abi.Status, string)) {
		for range 2 {
			d, _, st, why := attach(1)
			if st != abi.StatusOK {
				t.Fatal(st, why)
			}
			state := func(want abi.State) {
				t.Helper()
				if v, st := d.read(abi.RegState, 4); st != abi.StatusOK || abi.State(v) != want {
					t.Fatalf("state %s (%s), want %s", abi.State(v), st, want)
				}
			}
			put := func(reg, width uint32, v uint64) {
				t.Helper()
				if st := d.write(reg, width, v); st != abi.StatusOK {
					t.Fatalf("register %#x: %s", reg, st)
				}
			}
			const sqPage, cqPage, lists, entries = 4096, 8192, 12288, 16
			state(abi.StateReset)
			if st := d.write(abi.RegMagic, 4, 1); st != abi.StatusDenied {
				t.Errorf("a register that is read only: %s", st)
			}
			binary.LittleEndian.PutUint64(d.memory()[lists:], sqPage)
			binary.LittleEndian.PutUint64(d.memory()[lists+abi.PageSize:], cqPage)
			put(abi.RegAdminSQ, 8, lists)
			put(abi.RegAdminCQ, 8, lists+abi.PageSize)
			put(abi.RegAdminEntries, 4, entries)
			put(abi.RegControl, 4, uint64(abi.ControlEnable))
			state(abi.StateReady)
			layout := ring.AdminLayout(entries)
			sq, cq := ring.NewProducer(ring.Mem(d.memory()[sqPage:]), layout), ring.NewCQReader(ring.Mem(d.memory()[cqPage:]), layout)
			var raw [abi.AdminCmdSize]byte
			(&abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: 7}).Marshal(raw[:])
			must(t, sq.Push(raw[:]))
			index, _, _ := sq.Publish()
			d.ring(abi.DoorbellAdmin, 0, index)
			if cqs, _ := d.event(); !slices.Equal(cqs, []uint32{abi.AdminCQ}) {
				t.Errorf("events of CQs %#x", cqs)
			}
			var cqe abi.AdminCQE
			if ok, err := cq.Poll(raw[:]); err != nil || !ok {
				t.Fatalf("no completion: %v", err)
			}
			if cqe.Unmarshal(raw[:]); cqe.ID != 7 || cqe.Status != abi.StatusOK {
				t.Errorf("%+v", cqe)
			}
			d.ring(abi.DoorbellAdmin, 0, index+100) // more than the queue has
			if _, async := d.event(); len(async) != 1 || async[0].Type != abi.EventFunctionFault {
				t.Errorf("%+v", async)
			}
			state(abi.StateError)
			put(abi.RegControl, 4, uint64(abi.ControlReset))
			state(abi.StateReset)
			d.leave()
			list, err := w.nics[0].Functions(context.Background())
			if err != nil || list[1].Attached != "" {
				t.Errorf("%+v, %v", list[1], err)
			}
		}
	})
}

// TestANICThatStopsEndsItsSessions checks that a NIC that stops ends the sessions of its drivers.
func TestANICThatStopsEndsItsSessions(t *testing.T) {
	eachChannel(t, func(t *testing.T, w *world, attach func(uint32) (carried, uint64, abi.Status, string)) {
		d, _, st, why := attach(1)
		if st != abi.StatusOK {
			t.Fatal(st, why)
		}
		if _, st := d.read(abi.RegState, 4); st != abi.StatusOK {
			t.Fatal(st)
		}
		must(t, w.stop[0]())
		d.over()
	})
}

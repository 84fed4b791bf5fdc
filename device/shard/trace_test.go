package shard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// traced is a pair of drivers whose functions are traced. Within a step the shards' clocks advance
// by 1 ns with each reading, so that the order of events at one moment shows.
type traced struct {
	t     *testing.T
	v     *virtual
	ends  [2]*driver
	rings [2]*trace.Ring
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	v := newVirtualWith(t, 3, wire100us, together) // between two shards of a NIC it is Falcon
	return newTracedIn(t, v, func() (a, b *driver) { return pair(v) })
}

// newTracedIn is newTraced in a given world, with the drivers that connect makes.
func newTracedIn(t *testing.T, v *virtual, connect func() (a, b *driver)) *traced {
	t.Helper()
	x := &traced{t: t, v: v}
	var last falcon.Time
	var looks int64
	for _, s := range v.all() {
		s.trace.clock = func() int64 {
			if last != v.now {
				last, looks = v.now, -1
			}
			looks++
			return v.now + looks
		}
	}
	x.ends[0], x.ends[1] = connect()
	x.idle()
	for i, d := range x.ends {
		var err error
		if x.rings[i], err = (TraceView{d.fn.fs}).Start(d.fn.ID, 0); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// idle runs until nothing is left to do.
func (x *traced) idle() { x.v.idle(1e9) }

// wallOffset is the wall clock minus the virtual one.
const wallOffset = 1_700_000_000_000_000_000

// operations returns the operations that NIC i has traced since the last call.
func (x *traced) operations(i int) (list []*control.Operation) {
	x.t.Helper()
	events, lost := x.rings[i].Take(nil)
	if lost != 0 {
		x.t.Errorf("%d events lost", lost)
	}
	a := trace.NewAssembler(func(o *trace.Operation) {
		list = append(list, controller.DescribeOperation(x.ends[i].fn.ID, o, wallOffset))
	})
	for j := range events {
		a.Take(&events[j])
	}
	whole := len(list)
	if a.Finish(); len(list) != whole {
		x.t.Errorf("%d operations are not whole: %+v", len(list)-whole, list[whole:])
	}
	return list
}

// timeline returns one operation as text: what it is, and the times of its steps since start.
func timeline(o *control.Operation, start falcon.Time) string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "%s %s %d bytes, %d packets", o.Transport, o.Op, o.Bytes, o.Packets)
	if o.Again > 0 {
		fmt.Fprintf(b, " and %d again", o.Again)
	}
	fmt.Fprintf(b, ", %s:", or(o.Status, "no completion"))
	before := int64(0)
	for i, s := range o.Steps {
		fmt.Fprintf(b, " %s %d", s.Name, s.At-wallOffset-start)
		if i > 0 && s.After != s.At-before {
			fmt.Fprintf(b, " (after %d)", s.After)
		}
		before = s.At
	}
	return b.String()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (x *traced) want(i int, start falcon.Time, want ...string) {
	x.t.Helper()
	var got []string
	for _, o := range x.operations(i) {
		got = append(got, timeline(o, start))
	}
	if d := cmp.Diff(want, got); d != "" {
		x.t.Errorf("NIC %d: %s\n%s", i, d, strings.Join(got, "\n"))
	}
}

// arm asks for an event at the next completion.
func (x *traced) arm(ds ...*driver) {
	for _, d := range ds {
		d.ring(abi.DoorbellCQArm, d.cqn, d.comp.Next())
	}
	x.v.step()
}

// run runs what post starts to its end and returns when it started.
func (x *traced) run(post func()) (start falcon.Time) {
	x.t.Helper()
	x.idle()
	x.operations(0)
	x.operations(1)
	start = x.v.now
	post()
	x.ends[0].done()
	x.idle()
	return start
}

// traceCases are requests and the steps of either side: between two NICs, with 50 µs of wire each
// way, and inside one.
var traceCases = []struct {
	name           string
	post           func(x *traced, a, b *driver)
	asker, carrier []string // falcon
	inside, server []string // loopback
}{
	{
		name: "WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 3000, b, 0) },
		asker:   []string{"falcon WRITE 3000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002"},
		carrier: []string{"falcon WRITE Only 3000 bytes, 1 packets, no completion: received 50000 opened 50001 delivered 50002 acked 50003"},
		inside:  []string{"loopback WRITE 3000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 6 cqe_written 7"},
		server:  []string{"loopback WRITE Only 3000 bytes, 1 packets, no completion: delivered 4 acked 5"},
	},
	{
		name: "long WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 9000, b, 0) },
		asker: []string{"falcon WRITE 9000 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 10 acked 100005 cqe_written 100006"},
		carrier: []string{
			"falcon WRITE First 4096 bytes, 1 packets, no completion: received 50000 opened 50001 delivered 50002 acked 50003",
			"falcon WRITE Middle 4096 bytes, 1 packets, no completion: received 50004 opened 50005 delivered 50006 acked 50007",
			"falcon WRITE Last 808 bytes, 1 packets, no completion: received 50008 opened 50009 delivered 50010 acked 50011",
		},
		inside: []string{"loopback WRITE 9000 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 14 cqe_written 15"},
		server: []string{
			"loopback WRITE First 4096 bytes, 1 packets, no completion: delivered 4 acked 5",
			"loopback WRITE Middle 4096 bytes, 1 packets, no completion: delivered 8 acked 9",
			"loopback WRITE Last 808 bytes, 1 packets, no completion: delivered 12 acked 13",
		},
	},
	{
		name: "READ", post: func(_ *traced, a, b *driver) { a.send(abi.OpRead, 0, 5000, b, 0) },
		asker: []string{"falcon READ 5000 bytes, 2 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 7 acked 100004 cqe_written 100005"},
		carrier: []string{
			"falcon READ Request 4096 bytes, 1 packets, no completion: received 50000 opened 50001 delivered 50002 scheduled 50003 sealed 50004 acked 150001",
			"falcon READ Request 904 bytes, 1 packets, no completion: received 50006 opened 50007 delivered 50008 scheduled 50009 sealed 50010 acked 150003",
		},
		inside: []string{"loopback READ 5000 bytes, 2 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 11 cqe_written 12"},
		server: []string{
			"loopback READ Request 4096 bytes, 1 packets, no completion: delivered 4 scheduled 5 acked 7",
			"loopback READ Request 904 bytes, 1 packets, no completion: delivered 9 scheduled 10 acked 13",
		},
	},
	{
		name: "SEND with events", post: func(x *traced, a, b *driver) {
			b.receive(0, 4096)
			x.arm(a, b)
			a.send(abi.OpSend, 0, 100, b, 0)
		},
		asker:   []string{"falcon SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002 event 100003"},
		carrier: []string{"falcon SEND Only 100 bytes, 1 packets, success: received 50000 opened 50001 delivered 50002 cqe_written 50003 event 50004 acked 50005"},
		inside:  []string{"loopback SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 8 cqe_written 9 event 10"},
		server:  []string{"loopback SEND Only 100 bytes, 1 packets, success: delivered 4 cqe_written 5 event 6 acked 7"},
	},
	{
		name: "lost", post: func(x *traced, a, b *driver) {
			lost := false
			x.v.tap = func(from int, f []byte) []byte {
				if from == 0 && !lost {
					lost = true
					return nil
				}
				return f
			}
			a.send(abi.OpWrite, 0, 200, b, 0)
		},
		asker:   []string{"falcon WRITE 200 bytes, 1 packets and 1 again, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 200015 acked 300015 cqe_written 300016"},
		carrier: []string{"falcon WRITE Only 200 bytes, 1 packets, no completion: received 250014 opened 250015 delivered 250016 acked 250017"},
		inside:  []string{"loopback WRITE 200 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 6 cqe_written 7"},
		server:  []string{"loopback WRITE Only 200 bytes, 1 packets, no completion: delivered 4 acked 5"},
	},
	{
		name: "refused", post: func(_ *traced, a, b *driver) {
			b.rkey ^= 1
			a.send(abi.OpWrite, 0, 200, b, 0)
		},
		asker:  []string{"falcon WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 200001 cqe_written 200002"},
		inside: []string{"loopback WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 4 cqe_written 5"},
	},
}

// TestATraceHasEveryStepInOrder checks every step of each kind of request, in order and with its time.
func TestATraceHasEveryStepInOrder(t *testing.T) {
	for _, c := range traceCases {
		t.Run(c.name, func(t *testing.T) {
			x := newTraced(t)
			start := x.run(func() { c.post(x, x.ends[0], x.ends[1]) })
			x.want(0, start, c.asker...)
			x.want(1, start, c.carrier...)
		})
		t.Run(c.name+" inside", func(t *testing.T) {
			oneNIC = true
			defer func() { oneNIC = false }()
			x := newTraced(t)
			start := x.run(func() { c.post(x, x.ends[0], x.ends[1]) })
			x.want(0, start, c.inside...)
			x.want(1, start, c.server...)
		})
	}
}

// TestAFullTraceReplacesItsOldestEvents checks that events beyond the size of a ring replace the oldest and are counted,
// and that a function has one trace at a time, limited to a queue pair if asked for, and none after
// it ended.
func TestAFullTraceReplacesItsOldestEvents(t *testing.T) {
	x := newTraced(t)
	a, b := x.ends[0], x.ends[1]
	s, id := x.v.shardOf(a.fn), a.fn.ID
	for _, c := range []struct {
		id   string
		qpn  uint32
		want string
	}{
		{"h1.pf0.vf1", 0, "is traced already"}, {"h1.pf3", 0, "there is no function"}, {"h1.pf0.vf2", 0x77, "has no queue pair 0x77"},
	} {
		other, _ := pfvf.ParseID(c.id)
		if _, err := s.View().Traces.Start(other, c.qpn); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.id, err)
		}
	}
	for range 100 { // about 80 events for each request
		for range 16 {
			a.send(abi.OpWrite, 0, 64<<10, b, 0)
		}
		for range 16 {
			a.done()
		}
	}
	if events, lost := x.rings[0].Take(nil); len(events) != traceEvents || lost == 0 {
		t.Errorf("%d events, %d lost", len(events), lost)
	}
	s.funcs.setTrace(id, nil)
	a.send(abi.OpWrite, 0, 1, b, 0)
	a.done()
	if events, _ := x.rings[0].Take(nil); len(events) != 0 || len(s.trace.traces) != 0 {
		t.Errorf("%d events after the end", len(events))
	}
	r, err := s.View().Traces.Start(id, a.qpn) // its only one
	if err != nil {
		t.Fatal(err)
	}
	a.send(abi.OpWrite, 0, 1, b, 0)
	a.done()
	if events, _ := r.Take(nil); len(events) < 7 {
		t.Errorf("%d events of the queue pair", len(events))
	}
	s.funcs.setTrace(id, trace.NewRing(16, s.trace.clock, a.qpn+1))
	a.send(abi.OpWrite, 0, 1, b, 0)
	a.done()
	events, _ := s.trace.traces[id].Take(nil)
	for _, e := range events {
		if e.Kind != trace.Answered && e.Kind != trace.Signalled {
			t.Errorf("%+v of another queue pair", e)
		}
	}
	// A reset removes the objects, not the trace.
	a.fn.Reset(x.v.now)
	a.setUp()
	if a.fn.conns.Trace == nil || a.fn.conns.Trace != s.trace.traces[id] {
		t.Error("the trace ended with a reset")
	}
}

// TestATraceShowsBothSidesOfADatagram traces both sides of a datagram, over a link.
func TestATraceShowsBothSidesOfADatagram(t *testing.T) {
	x := newTraced(t)
	a, b := x.ends[0], x.ends[1]
	for _, d := range x.ends {
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
		d.qpn = 0
	}
	to := a.createUD(b.fn.GID(), 0, 7)
	b.createUD(a.fn.GID(), 0, 7)
	for range 2 { // the first opens the link
		b.receive(8192, 4096)
		start := x.run(func() { a.datagram(to, b.qpn, 100) })
		if x.v.now-start < 1e9 {
			t.Error("time stands still")
		}
	}
	b.receive(8192, 4096)
	start := x.run(func() { a.datagram(to, b.qpn, 100) })
	x.want(0, start, "falcon SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 cqe_written 3 scheduled 4 sealed 5 acked 100001")
	x.want(1, start, "falcon UD SEND Only 100 bytes, 1 packets, success: received 50000 opened 50001 delivered 50002 cqe_written 50003 acked 50004")
}

// TestAnUnfinishedRequestIsInTheTrace checks that a request that does not end is written at the end of the trace, with
// the steps so far: a SEND without a receive at the peer.
func TestAnUnfinishedRequestIsInTheTrace(t *testing.T) {
	x := newTraced(t)
	start := x.v.now
	x.ends[0].send(abi.OpSend, 0, 100, x.ends[1], 0)
	x.v.idle(400_000)
	var got []*control.Operation
	a := trace.NewAssembler(func(o *trace.Operation) {
		got = append(got, controller.DescribeOperation(x.ends[0].fn.ID, o, wallOffset))
	})
	events, _ := x.rings[0].Take(nil)
	for i := range events {
		a.Take(&events[i])
	}
	if len(got) != 0 {
		t.Fatalf("%+v is complete", got[0])
	}
	if a.Finish(); len(got) != 1 || !got[0].Open {
		t.Fatalf("%+v", got)
	}
	if text := timeline(got[0], start); !strings.HasPrefix(text, "falcon SEND 100 bytes, 1 packets, no completion: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4") || strings.Contains(text, "acked") {
		t.Error(text)
	}
}

// TestTraceLinkDown checks that a packet that is not sent is not traced as sealed, and that the
// next sealed one is not taken for it.
func TestTraceLinkDown(t *testing.T) {
	x := newTraced(t)
	a := x.ends[0]
	a.fn.LinkUp = false
	a.send(abi.OpWrite, 0, 100, x.ends[1], 0)
	x.v.idle(1_000_000)
	a.fn.LinkUp = true
	x.rings[0].SealedPacket()
	events, _ := x.rings[0].Take(nil)
	if len(events) < 4 {
		t.Errorf("%+v", events)
	}
	for _, e := range events {
		if e.Kind == trace.Sealed {
			t.Errorf("sealed: %+v", e)
		}
	}
}

// roceTraceCases are requests and the steps of either side over RoCEv2: between two NICs, with 50
// µs of wire each way, and inside one, where nothing is sealed.
var roceTraceCases = []struct {
	name           string
	post           func(x *traced, a, b *driver)
	asker, carrier []string
	inside, server []string
}{
	{
		name: "WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 1000, b, 0) },
		asker:   []string{"roce WRITE 1000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002"},
		carrier: []string{"roce RC WRITE Only 1000 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 acked 50004"},
		inside:  []string{"roce WRITE 1000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 7 cqe_written 8"},
		server:  []string{"roce RC WRITE Only 1000 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 acked 9"},
	},
	{
		name: "long WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 2500, b, 0) },
		asker: []string{"roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 8 acked 100003 cqe_written 100004"},
		carrier: []string{
			"roce RC WRITE First 1024 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 acked 50012",
			"roce RC WRITE Middle 1024 bytes, 1 packets, no completion: received 50005 opened 50006 delivered 50007 acked 50012",
			"roce RC WRITE Last 452 bytes, 1 packets, no completion: received 50009 opened 50010 delivered 50011 acked 50012",
		},
		inside: []string{"roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 17 cqe_written 18"},
		server: []string{
			"roce RC WRITE First 1024 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 acked 19",
			"roce RC WRITE Middle 1024 bytes, 1 packets, no completion: received 8 opened 9 delivered 10 acked 19",
			"roce RC WRITE Last 452 bytes, 1 packets, no completion: received 12 opened 13 delivered 14 acked 19",
		},
	},
	{
		name: "READ", post: func(_ *traced, a, b *driver) { a.send(abi.OpRead, 0, 2500, b, 0) },
		asker:   []string{"roce READ 2500 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100003 cqe_written 100004"},
		carrier: []string{"roce RC READ Request 2500 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 scheduled 50004 sealed 50005"},
		inside:  []string{"roce READ 2500 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 10 cqe_written 11"},
		server:  []string{"roce RC READ Request 2500 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 scheduled 7"},
	},
	{
		name: "SEND with events", post: func(x *traced, a, b *driver) {
			b.receive(0, 4096)
			x.arm(a, b)
			a.send(abi.OpSend, 0, 100, b, 0)
		},
		asker:   []string{"roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002 event 100003"},
		carrier: []string{"roce RC SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50004 event 50005 acked 50006"},
		inside:  []string{"roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 9 cqe_written 10 event 11"},
		server:  []string{"roce RC SEND Only 100 bytes, 1 packets, success: received 4 opened 5 delivered 6 cqe_written 7 event 8 acked 12"},
	},
	{
		name: "refused", post: func(_ *traced, a, b *driver) {
			b.rkey ^= 1
			a.send(abi.OpWrite, 0, 200, b, 0)
		},
		asker:  []string{"roce WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002"},
		inside: []string{"roce WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 6 cqe_written 7"},
	},
}

// TestTraceRoCE is TestATraceHasEveryStepInOrder over RoCEv2.
func TestTraceRoCE(t *testing.T) {
	for _, c := range roceTraceCases {
		for _, inside := range []bool{false, true} {
			name, asker, server := c.name, c.asker, c.carrier
			if inside {
				name, asker, server = c.name+" inside", c.inside, c.server
			}
			t.Run(name, func(t *testing.T) {
				if inside && perNIC > 1 {
					t.Skip("the times are of two functions of one shard")
				}
				oneNIC = inside
				defer func() { oneNIC = false }()
				x := tracedRoCE(t)
				start := x.run(func() { c.post(x, x.ends[0], x.ends[1]) })
				x.want(0, start, asker...)
				x.want(1, start, server...)
			})
		}
	}
}

func tracedRoCE(t *testing.T) *traced {
	t.Helper()
	v := newRoCEWorld(t, config.TransportRoCE, wire100us)
	return newTracedIn(t, v, func() (a, b *driver) {
		a, b = drivers(v)
		wiredPair(v, a, b, true)
		return a, b
	})
}

// TestTraceRoCEDatagrams checks the trace of a datagram over RoCEv2, which is not acknowledged.
func TestTraceRoCEDatagrams(t *testing.T) {
	x := tracedRoCE(t)
	a, b := x.ends[0], x.ends[1]
	for _, d := range x.ends {
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
		d.qpn = 0
	}
	to := a.createUD(b.fn.GID(), 0, 7)
	b.createUD(a.fn.GID(), 0, 7)
	b.receive(8192, 4096)
	start := x.run(func() { a.datagram(to, b.qpn, 100) })
	x.want(0, start, "roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 cqe_written 3 scheduled 4 sealed 5")
	x.want(1, start, "roce UD SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50005")
}

// TestTraceRoCEUnreliable checks that a request over an unreliable connection is done when its last
// packet was sent, without an acknowledgement.
func TestTraceRoCEUnreliable(t *testing.T) {
	x := tracedRoCE(t)
	a, b := x.ends[0], x.ends[1]
	for _, d := range x.ends {
		d.createUC()
	}
	a.connectUC(b)
	b.connectUC(a)
	start := x.run(func() { a.send(abi.OpWrite, 0, 2500, b, 0) })
	x.want(0, start, "roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 8 cqe_written 9")
	x.want(1, start,
		"roce UC WRITE First 1024 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003",
		"roce UC WRITE Middle 1024 bytes, 1 packets, no completion: received 50006 opened 50007 delivered 50008",
		"roce UC WRITE Last 452 bytes, 1 packets, no completion: received 50011 opened 50012 delivered 50013")
	b.receive(8192, 4096)
	start = x.run(func() { a.send(abi.OpSend, 0, 100, b, 0) })
	x.want(0, start, "roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 cqe_written 5")
	x.want(1, start, "roce UC SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50005")
}

// createUC turns the driver's queue pair into an unreliable connection, in INIT.
func (d *driver) createUC() {
	d.v.t.Helper()
	d.b.Features |= abi.FeatureExtendedVerbs
	d.fn.Verbs().UseFeatures(d.b.Features)
	d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
	d.newQP(abi.QPTypeUC)
}

// connectUC takes it to RTS, with a peer.
func (d *driver) connectUC(peer *driver) {
	d.v.t.Helper()
	for _, m := range []abi.ModifyQP{
		{Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: abi.AccessRemoteWrite},
		{
			Mask:  abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN,
			State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: peer.qpn, RQPSN: 1, DGID: peer.fn.GID(),
		},
		{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS, SQPSN: 1},
	} {
		m.QPN = d.qpn
		d.must(abi.AdminOpModifyQP, &m)
	}
}

package guestlib

import (
	"net"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// silentRig is a connected QP and its CQ without a device: doorbells stay on the dirty list, and
// the test writes the completions.
type silentRig struct {
	qp    *QP
	cq    *CQ
	sq    *ring.Consumer
	w     *ring.CQWriter
	entry []byte
}

func newSilentRig(t testing.TB) *silentRig {
	t.Helper()
	src, err := arena.NewMemfd(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	c1, c2 := net.Pipe()
	d := &Device{pool: arena.NewPool(src)}
	d.stream.Store(newStream(c1))
	d.learned.Store(&attributes{})
	t.Cleanup(func() {
		c1.Close()
		c2.Close()
		d.pool.Close()
	})
	const log2 = 6
	layout := ring.CQLayout(log2)
	mem, err := newArea(d.pool, layout)
	if err != nil {
		t.Fatal(err)
	}
	r := &silentRig{entry: make([]byte, abi.CQESize), w: ring.NewCQWriter(ring.Mem(mem.block.Bytes()), layout)}
	r.cq = &CQ{
		dev: d, admin: &admin{}, log2: log2, area: mem, reader: ring.NewCQReader(ring.Mem(mem.block.Bytes()), layout), entry: make([]byte, abi.CQESize), qps: map[uint32]*QP{},
	}
	r.qp = &QP{dev: d, qpn: 5, sendCQ: r.cq, recvCQ: r.cq}
	if r.qp.sq, err = newWorkQueue(d, log2, 9, abi.DoorbellSQ); err != nil {
		t.Fatal(err)
	}
	if r.qp.rq, err = newWorkQueue(d, log2, 5, abi.DoorbellRQ); err != nil {
		t.Fatal(err)
	}
	r.qp.sq.maxSGE, r.qp.sq.maxData, r.qp.rq.maxSGE = 16, 224, 1
	r.sq = ring.NewConsumer(ring.Mem(r.qp.sq.area.block.Bytes()), r.qp.sq.layout)
	r.qp.state.Store(uint32(abi.QPStateRTS))
	r.cq.attach(r.qp)
	return r
}

// done completes the work request id as the device does.
func (r *silentRig) done(t testing.TB, id uint64) {
	if n, err := r.sq.Poll(); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	r.sq.Take()
	if err := r.sq.Commit(); err != nil {
		t.Fatal(err)
	}
	e := abi.CQE{WRID: id, QPN: r.qp.qpn, Opcode: abi.WCOpWrite}
	e.Marshal(r.entry)
	if err := r.w.Write(r.entry); err != nil {
		t.Fatal(err)
	}
}

// The data path does not allocate: not in posting, ringing, arming and polling.
func TestTheDataPathDoesNotAllocate(t *testing.T) {
	r := newSilentRig(t)
	sgl := make([]SGE, 16)
	inline := make([]byte, 224)
	var wc [8]WC
	id := uint64(0)
	n := allocs.PerRun(1000, func() {
		id++
		if err := r.qp.PostSend(&SendWR{ID: id, Opcode: Write, Flags: Signaled, SGL: sgl, RemoteAddr: 1, RKey: 2}); err != nil {
			t.Fatal(err)
		}
		id++
		if err := r.qp.PostSend(&SendWR{ID: id, Opcode: Send, Flags: Signaled, Inline: inline}); err != nil {
			t.Fatal(err)
		}
		r.qp.dev.stream.Load().arm(&r.cq.bell, 0)
		r.done(t, id-1)
		r.done(t, id)
		if n, err := r.cq.Poll(wc[:]); n != 2 || err != nil || wc[1].ID != id {
			t.Fatal(n, err, wc[1])
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per run", n)
	}
	recv := RecvWR{SGL: sgl[:1]}
	posts := 0
	if n := allocs.PerRun(50, func() {
		posts++
		if err := r.qp.PostRecv(&recv); err != nil {
			t.Fatal(posts, err)
		}
	}); n != 0 {
		t.Errorf("PostRecv: %v allocations per run", n)
	}
}

func BenchmarkPostPoll(b *testing.B) {
	r := newSilentRig(b)
	wr := SendWR{Opcode: Write, Flags: Signaled, SGL: make([]SGE, 1)}
	var wc [1]WC
	b.ReportAllocs()
	for i := range b.N {
		wr.ID = uint64(i)
		if err := r.qp.PostSend(&wr); err != nil {
			b.Fatal(err)
		}
		r.done(b, wr.ID)
		if n, err := r.cq.Poll(wc[:]); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

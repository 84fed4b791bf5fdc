package rdma

import (
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// direct drives a pair back to back: what one engine transmits the other receives at once, with no
// network between them.
type direct struct {
	*pair
	ev  falcon.Event
	buf [8192]byte
	cqe [abi.CQESize]byte
}

func newDirect(t testing.TB) *direct {
	return &direct{pair: newPair(t, true, 1<<20, worldConfig{arena: 32 << 20, mtu: 4096}, qpConfig{log2: 8})}
}

// pump moves packets once in both directions and advances time by a microsecond.
func (d *direct) pump() {
	d.now += 1000
	for i, h := range d.hosts {
		h.fe.Advance(d.now)
		d.drain(h)
		h.e.Run(d.now)
		d.transmit(h, d.hosts[1-i])
		h.fe.FlushAcks(d.now)
		d.transmit(h, d.hosts[1-i])
	}
}

func (d *direct) transmit(from, to *host) {
	for {
		n, _ := from.fe.Transmit(d.now, d.buf[:])
		if n == 0 {
			return
		}
		to.fe.Receive(d.now, falcon.Packet{T1: falcon.FalconTime(d.now), Data: d.buf[:n]})
		d.drain(to)
	}
}

func (d *direct) drain(h *host) {
	for wire := h.rof(); h.fe.Next(&d.ev); {
		wire.HandleEvent(d.now, &d.ev)
	}
}

// push posts an entry that was marshalled before.
func (d *direct) push(q *ring.Producer, entry []byte) {
	if err := q.Push(entry); err != nil {
		d.t.Fatal(err)
	}
	if _, _, err := q.Publish(); err != nil {
		d.t.Fatal(err)
	}
}

// reap polls until n completions have arrived.
func (d *direct) reap(c *cq, n int) {
	for tries := 0; n > 0; tries++ {
		ok, err := c.reader.Poll(d.cqe[:])
		switch {
		case err != nil:
			d.t.Fatal(err)
		case !ok && tries > 1e6:
			d.t.Fatal("stuck")
		case !ok:
			d.pump()
			continue
		}
		if st := abi.WCStatus(d.cqe[28]); st != abi.WCSuccess {
			d.t.Fatal(st)
		}
		if err := c.reader.Commit(); err != nil {
			d.t.Fatal(err)
		}
		n--
	}
}

// entry marshals a send request with one SGE of n bytes.
func (d *direct) entry(op abi.Opcode, n int, flags uint8) []byte {
	b := make([]byte, 512)
	x := d.remote(op, 0)
	x.Flags, x.NumSGE, x.CompareAdd = flags, 1, 1
	x.Marshal(b)
	s := d.ma.sge(0, n)
	at := abi.SendWQEHeader
	if op == abi.OpMaskedCmpSwap || op == abi.OpMaskedFetchAdd {
		at += abi.AtomicMasksSize
	}
	s.Marshal(b[at:])
	return b
}

// TestNoAllocations holds the data path to no allocation per operation, for every operation and
// both sides.
func TestNoAllocations(t *testing.T) { testNoAllocations(t, newDirect(t)) }

func TestNoAllocationsOverLoopback(t *testing.T) {
	worldsOver(t, insideNIC)
	testNoAllocations(t, newDirect(t))
}

func testNoAllocations(t *testing.T, d *direct) {
	d.a.h.fn.UseFeatures(abi.FeatureExtendedVerbs) // masked atomics
	recv := make([]byte, 512)
	(&abi.RecvWQE{NumSGE: 1}).Marshal(recv)
	s := d.mb.sge(0, 65536)
	s.Marshal(recv[abi.RecvWQEHeader:])
	for _, c := range []struct {
		op abi.Opcode
		n  int
	}{
		{abi.OpSend, 64},
		{abi.OpSend, 20000},
		{abi.OpWrite, 64},
		{abi.OpWrite, 20000},
		{abi.OpWriteImm, 64},
		{abi.OpRead, 64},
		{abi.OpRead, 20000},
		{abi.OpFetchAdd, 8},
		{abi.OpCmpSwap, 8},
		{abi.OpMaskedFetchAdd, 8},
		{abi.OpMaskedCmpSwap, 8},
	} {
		entry := d.entry(c.op, c.n, abi.SendSignaled)
		bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: d.a.number}
		takes := c.op == abi.OpSend || c.op == abi.OpWriteImm
		once := func() {
			if takes {
				d.push(d.b.rq, recv)
			}
			d.push(d.a.sq, entry)
			bell.Index = d.a.sq.Next()
			d.a.h.fn.Doorbell(d.now, bell)
			d.reap(d.a.send, 1)
			if takes {
				d.reap(d.b.recv, 1)
			}
		}
		for range 300 {
			once() // pools of the transport fill
		}
		if n := testing.AllocsPerRun(300, once); n != 0 {
			t.Errorf("%v of %d bytes: %v allocations, want 0", c.op, c.n, n)
		}
	}
}

// stream posts b.N requests with a queue full in flight, every sixteenth signaled.
func stream(b *testing.B, op abi.Opcode, n int) (d *direct, elapsed time.Duration) {
	d = newDirect(b)
	quiet, loud := d.entry(op, n, 0), d.entry(op, n, abi.SendSignaled)
	bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: d.a.number}
	const window = 12 // batches of 16
	b.ReportAllocs()
	b.ResetTimer()
	inFlight := 0
	for posted := 0; posted < b.N; posted += 16 {
		for i := range 16 {
			e := quiet
			if i == 15 {
				e = loud
			}
			if err := d.a.sq.Push(e); err != nil {
				b.Fatal(err)
			}
		}
		if _, _, err := d.a.sq.Publish(); err != nil {
			b.Fatal(err)
		}
		bell.Index = d.a.sq.Next()
		d.a.h.fn.Doorbell(d.now, bell)
		if inFlight++; inFlight == window {
			d.reap(d.a.send, 1)
			inFlight--
		}
	}
	d.reap(d.a.send, inFlight)
	b.StopTimer()
	return d, b.Elapsed()
}

func BenchmarkWrite64(b *testing.B) {
	_, t := stream(b, abi.OpWrite, 64)
	b.ReportMetric(float64(b.N)/t.Seconds(), "rdma/backtoback_write64_msgs_per_s")
}

func BenchmarkWrite64K(b *testing.B) {
	_, t := stream(b, abi.OpWrite, 65536)
	b.ReportMetric(float64(b.N)*65536*8/t.Seconds()/1e9, "rdma/backtoback_write64k_gbps")
}

func BenchmarkRead64K(b *testing.B) {
	_, t := stream(b, abi.OpRead, 65536)
	b.ReportMetric(float64(b.N)*65536*8/t.Seconds()/1e9, "rdma/backtoback_read64k_gbps")
}

// BenchmarkPingWrite64 has one request in flight: the cost of a round trip in CPU time.
func BenchmarkPingWrite64(b *testing.B) {
	d := newDirect(b)
	entry := d.entry(abi.OpWrite, 64, abi.SendSignaled)
	bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: d.a.number}
	b.ReportAllocs()
	for b.Loop() {
		d.push(d.a.sq, entry)
		bell.Index = d.a.sq.Next()
		d.a.h.fn.Doorbell(d.now, bell)
		d.reap(d.a.send, 1)
	}
}

// BenchmarkLoopbackWrite64K writes within one NIC.
func BenchmarkLoopbackWrite64K(b *testing.B) {
	worldsOver(b, insideNIC)
	_, elapsed := stream(b, abi.OpWrite, 65536)
	b.ReportMetric(float64(b.N)*65536*8/float64(elapsed.Nanoseconds()), "rdma/loopback_write64k_gbps")
}

// TestNoAllocationsOfDatagrams: datagrams allocate nothing, over Falcon and inside a NIC, by a
// handle and with the address in the entry.
func TestNoAllocationsOfDatagrams(t *testing.T) {
	overEach(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{arena: 32 << 20, mtu: 4096}, qpConfig{log2: 8})
		p.run(1e9, func() bool {
			return p.hosts[0].fn.Links.Len() > 0 && p.hosts[0].fn.Links.Find(rof.LinkKey{GID: p.hosts[1].gid(), TrafficClass: 0x20, HopLimit: 9, Ordered: true}).Connected()
		})
		d := &direct{pair: &pair{world: p.world, a: p.qps[0], b: p.qps[1], ma: p.mem[0], mb: p.mem[1]}}
		recv, entry := make([]byte, 512), make([]byte, 512)
		(&abi.RecvWQE{NumSGE: 1}).Marshal(recv)
		s := d.mb.sge(0, 65536)
		s.Marshal(recv[abi.RecvWQEHeader:])
		s = d.ma.sge(0, 2000)
		s.Marshal(entry[abi.SendWQEHeader:])
		bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: d.a.number}
		once := func() {
			d.push(d.b.rq, recv)
			d.push(d.a.sq, entry)
			bell.Index = d.a.sq.Next()
			d.a.h.fn.Doorbell(d.now, bell)
			d.reap(d.a.send, 1)
			d.reap(d.b.recv, 1)
		}
		for name, x := range map[string]abi.SendWQE{"by a handle": p.to(0, abi.OpSend), "address in the entry": p.vector(0, nil)} {
			x.NumSGE = 1
			x.Marshal(entry)
			for range 300 {
				once()
			}
			if n := testing.AllocsPerRun(300, once); n != 0 {
				t.Errorf("%s: %v allocations, want 0", name, n)
			}
		}
	}, byFalcon, insideNIC)
}

// TestNoAllocationsOfAnyQueuePair: the data path of every kind of queue pair allocates nothing per
// operation.
func TestNoAllocationsOfAnyQueuePair(t *testing.T) {
	for _, c := range []struct {
		name string
		qp   qpConfig
		xrc  bool
		srq  bool
	}{
		{name: "SRQ", srq: true},
		{name: "UC", qp: qpConfig{typ: abi.QPTypeUC}},
		{name: "XRC", xrc: true},
		{name: "weak", qp: qpConfig{ordering: abi.OrderingWeak}},
		{name: "unordered", qp: qpConfig{ordering: abi.OrderingUnordered, cie: true}},
		{name: "complete in error", qp: qpConfig{cie: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDirect(t)
			d.hosts[0].fn.UseFeatures(abi.FeatureExtendedVerbs)
			h := d.hosts[1]
			var rq *ring.Producer
			var srqn uint32
			from, to := qpConfig{typ: c.qp.typ, ordering: c.qp.ordering, cie: c.qp.cie}, c.qp
			recv := h.createCQ(10)
			switch {
			case c.srq:
				s := h.createSRQ(abi.CreateSRQ{PDN: d.pd[1], Log2Entries: 8})
				to.srq, rq = s, s.ring
			case c.xrc:
				xrcd, _ := h.fn.OpenXRCD()
				s := h.createSRQ(abi.CreateSRQ{PDN: d.pd[1], Log2Entries: 8, Type: abi.SRQTypeXRC, XRCDN: xrcd, CQN: recv.number})
				rq, srqn = s.ring, s.number
				from.typ, to.typ, to.xrcd = abi.QPTypeXRCSend, abi.QPTypeXRCRecv, xrcd
			}
			to.recv = recv
			a, b := d.hosts[0].createQP(d.pd[0], from), h.createQP(d.pd[1], to)
			d.connect(a, b, c.qp.ordering == abi.OrderingStrong)
			if rq == nil {
				rq = b.rq
			}
			receive := make([]byte, 512)
			(&abi.RecvWQE{NumSGE: 1}).Marshal(receive)
			s := d.mb.sge(0, 65536)
			s.Marshal(receive[abi.RecvWQEHeader:])
			for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpMaskedFetchAdd} {
				if c.qp.typ == abi.QPTypeUC && op != abi.OpSend && op != abi.OpWrite && op != abi.OpWriteImm {
					continue
				}
				n := 1000
				if op == abi.OpMaskedFetchAdd {
					n = 8
				}
				entry := d.entry(op, n, abi.SendSignaled)
				var x abi.SendWQE
				x.Unmarshal(entry)
				x.RemoteSRQN = srqn
				x.Marshal(entry)
				bell := &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: a.number}
				takes := op == abi.OpSend || op == abi.OpWriteImm
				once := func() {
					if takes {
						d.push(rq, receive)
					}
					d.push(a.sq, entry)
					bell.Index = a.sq.Next()
					a.h.fn.Doorbell(d.now, bell)
					d.reap(a.send, 1)
					if takes {
						d.reap(recv, 1)
					}
				}
				for range 300 {
					once() // pools of the transport fill
				}
				if n := testing.AllocsPerRun(200, once); n != 0 {
					t.Errorf("%v: %v allocations, want 0", op, n)
				}
			}
		})
	}
}

// BenchmarkPoll measures the check of one empty queue.
func BenchmarkPoll(b *testing.B) {
	p := newPair(b, true, 8192, worldConfig{}, qpConfig{})
	p.hosts[0].fn.UseFeatures(abi.FeatureEventIndex)
	p.a.ring()
	p.step()
	b.ReportAllocs()
	for range b.N {
		p.hosts[0].e.Poll(falcon.Time(p.now))
	}
}

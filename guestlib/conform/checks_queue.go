package conform

import (
	"bytes"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var queueChecks = []check{
	{"queue.producer", "DEV-605 DEV-612", 0, queueProducer},
	{"queue.old-doorbell", "DEV-605 DEV-612", 0, queueOldDoorbell},
	{"queue.consumer", "DEV-606", 0, queueConsumer},
	{"queue.event-index", "DEV-607 DEV-804", abi.FeatureEventIndex, queueEventIndex},
	{"queue.no-event-index", "DEV-805", 0, queueNoEventIndex},
	{"queue.order", "DEV-609", 0, queueOrder},
	{"queue.unsignaled", "DEV-609", 0, queueUnsignaled},
	{"queue.too-much", "DEV-608", 0, queueTooMuch},
	{"queue.flush", "DEV-610", 0, queueFlush},
	{"queue.dropped", "DEV-610", 0, queueDropped},
	{"queue.operations", "DEV-606 DEV-609", 0, queueOperations},
	{"queue.atomic-write", "DEV-614", abi.FeatureExtendedVerbs, queueAtomicWrite},
	{"queue.masked-atomics", "DEV-611", abi.FeatureExtendedVerbs, queueMaskedAtomics},
	{"queue.atomic-alignment", "DEV-613", 0, queueAtomicAlignment},
	{"doorbell.nobody", "DEV-801", 0, doorbellNobody},
	{"doorbell.order", "DEV-802", 0, doorbellOrder},
	{"doorbell.sleeper", "DEV-805", 0, doorbellSleeper},
}

func queueProducer(t *T) {
	c := t.attach()
	for _, bad := range []struct {
		name  string
		spoil func(r *qpPair)
	}{
		{"a producer more than a queue ahead", func(r *qpPair) {
			t.noError(mem(r.a.sq.block).Store32(0, r.a.sq.last+1<<queueLog2+1))
			r.ring(abi.Doorbell{Kind: abi.DoorbellSQ, Queue: r.a.qpn, Index: r.a.sq.last + 1})
		}},
		{"a producer that moved back", func(r *qpPair) {
			t.noError(mem(r.a.sq.block).Store32(0, 0))
			r.ring(abi.Doorbell{Kind: abi.DoorbellSQ, Queue: r.a.qpn, Index: 0})
		}},
		{"a doorbell ahead of the producer", func(r *qpPair) {
			r.ring(abi.Doorbell{Kind: abi.DoorbellSQ, Queue: r.a.qpn, Index: r.a.sq.last + 1})
		}},
		{"a receive producer more than a queue ahead", func(r *qpPair) {
			t.noError(mem(r.a.rq.block).Store32(0, 1<<queueLog2+1))
			r.ring(abi.Doorbell{Kind: abi.DoorbellRQ, Queue: r.a.qpn, Index: 1})
		}},
	} {
		c.enable()
		r := c.qpPair(nil)
		r.copy(1, 0, 4096, 8)
		r.cq.want(1, abi.WCSuccess)
		bad.spoil(r)
		if e := c.stream.event(abi.EventQPFatal); e.Number != r.a.qpn {
			t.Fatalf("%s: EventQPFatal of QP %d, want %d", bad.name, e.Number, r.a.qpn)
		}
		r.a.wantState(abi.QPStateErr)
		if s := c.state(); s != abi.StateReady {
			t.Fatalf("%s took the function to %s", bad.name, s)
		}
		c.reset()
	}
}

// queueTooMuch checks that an entry which exceeds the limits of its queue fails.
func queueTooMuch(t *T) {
	c := t.attach()
	for _, bad := range []struct {
		name string
		want abi.WCStatus
		post func(r *qpPair)
	}{
		{"an SGE too many", abi.WCLocQPOpErr, func(r *qpPair) {
			b := make([]byte, abi.SendWQEHeader)
			(&abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey, NumSGE: maxSGE + 1}).Marshal(b)
			r.a.push(r.a.sq, b)
		}},
		{"a byte inline too many", abi.WCLocLenErr, func(r *qpPair) {
			r.a.postInline(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, make([]byte, maxInline+1))
		}},
	} {
		c.enable()
		r := c.qpPair(nil)
		bad.post(r)
		if e := r.cq.want(1, bad.want); e.QPN != r.a.qpn {
			t.Fatalf("%s: completion of QP %d, want %d", bad.name, e.QPN, r.a.qpn)
		}
		c.reset()
	}
	c.enable()
	send, recv := c.newCQ(4), c.newCQ(4)
	sq, rq := c.newQueue(abi.DoorbellSQ, queueLog2, sendStride), c.newQueue(abi.DoorbellRQ, queueLog2, recvStride)
	c.refuse(abi.AdminOpCreateQP, &abi.CreateQP{
		PDN: c.allocPD(), SendCQ: send.cqn, RecvCQ: recv.cqn, Type: abi.QPTypeRC, SQLog2Entries: queueLog2, RQLog2Entries: queueLog2,
		SQLog2Stride: 7, RQLog2Stride: recvStride, MaxSendSGE: 5, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: sq.list.Root, RQPages: rq.list.Root,
	}, abi.StatusInvalidArgument)
}

func queueOldDoorbell(t *T) {
	r := t.qpPair()
	for i := range uint64(5) {
		r.copy(i, 0, 4096, 8)
		r.cq.want(i, abi.WCSuccess)
	}
	for i := range uint32(6) {
		r.ring(abi.Doorbell{Kind: abi.DoorbellSQ, Queue: r.a.qpn, Index: i})
	}
	r.copy(9, 0, 4096, 8)
	r.cq.want(9, abi.WCSuccess)
	if s := r.state(); s != abi.StateReady {
		t.Fatalf("doorbells behind the producer took the function to %s", s)
	}
}

// queueConsumer checks that a slot may be overwritten once the consumer index has passed it. It
// goes around the queue several times.
func queueConsumer(t *T) {
	r := t.qpPair()
	for i := range uint64(3 << queueLog2) {
		want := bytes.Repeat([]byte{byte(i + 1)}, 48)
		r.a.postInline(abi.SendWQE{WRID: i, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova + 64*i, RKey: r.mr.rkey}, want)
		t.until(func() bool { return r.a.sq.word(t, abi.QueueHeaderConsumer) == uint32(i)+1 }, "the consumer index to pass entry %d", i)
		slot := r.a.sq.block.Bytes()[abi.QueueHeaderSize+int(i)%(1<<queueLog2)<<sendStride:][:1<<sendStride]
		copy(slot, bytes.Repeat([]byte{0xff}, len(slot)))
		r.cq.want(i, abi.WCSuccess)
		if got := r.mr.bytes()[64*i:][:48]; !bytes.Equal(got, want) {
			t.Fatalf("inline data of entry %d changed after the consumer index had passed it", i)
		}
	}
	for _, q := range []*queue{r.a.sq, r.b.rq} {
		if p := q.word(t, 0); p != q.last {
			t.Fatalf("the device wrote to the driver's producer index")
		}
	}
}

// queueEventIndex rings only when the event index asks for it. All work must be done, and in the
// end the device must ask for the next doorbell.
func queueEventIndex(t *T) {
	r := t.qpPair()
	posted := uint64(0)
	for round := range 30 {
		for range round%5 + 1 {
			r.copy(posted, 0, 4096, 8)
			posted++
		}
		for i := posted - uint64(round%5) - 1; i < posted; i++ {
			r.cq.want(i, abi.WCSuccess)
		}
		if round%10 == 9 {
			t.until(func() bool { return r.a.sq.word(t, abi.QueueHeaderEventIndex) == uint32(posted) }, "the device to arm the idle send queue at %d", posted)
		}
	}
	// In ERR both queues are armed.
	r.a.modify(r.a.step(abi.QPStateErr, 0))
	r.a.postRecv(1)
	r.rcq.want(1, abi.WCWRFlushErr)
	r.copy(2, 0, 0, 8)
	r.cq.want(2, abi.WCWRFlushErr)
	for _, q := range []*queue{r.a.sq, r.a.rq} {
		t.until(func() bool { return q.word(t, abi.QueueHeaderEventIndex) == q.last }, "the device to arm a queue of a QP in ERR")
	}
}

func queueNoEventIndex(t *T) {
	c := t.readyWith(features &^ abi.FeatureEventIndex)
	r := c.qpPair(nil)
	for i := range uint64(20) {
		r.copy(i, 0, 4096, 8)
		r.cq.want(i, abi.WCSuccess)
		if i%7 == 6 {
			time.Sleep(quiet / 3) // it sleeps by now
		}
	}
}

func queueOrder(t *T) {
	r := t.qpPair()
	for round := range uint64(8) {
		for i := range uint64(1 << queueLog2) {
			n := int(64 + 4001*(i%4)) // of one and of several packets
			r.copy(round<<queueLog2+i, 0, 32<<10, n)
		}
		for i := range uint64(1 << queueLog2) {
			r.cq.want(round<<queueLog2+i, abi.WCSuccess)
		}
	}
}

func queueUnsignaled(t *T) {
	r := t.qpPair()
	write := abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: r.mr.iova + 4096, RKey: r.mr.rkey}
	for i := range uint64(5) {
		write.WRID = i
		r.a.post(write, r.mr.sge(int(64*i), 64))
		write.RemoteAddr += 64
	}
	r.cq.empty()
	copy(r.mr.bytes()[5*64:], "the last of six")
	write.WRID, write.Flags = 99, abi.SendSignaled
	r.a.post(write, r.mr.sge(5*64, 64))
	r.cq.want(99, abi.WCSuccess)
	if !bytes.Equal(r.mr.bytes()[:6*64], r.mr.bytes()[4096:][:6*64]) {
		t.Fatalf("a completion says that the unsignaled sends before it succeeded, and their data is not there")
	}
	write.Flags, write.WRID, write.RKey = 0, 100, write.RKey^0x55_5500
	r.a.post(write, r.mr.sge(0, 8)) // it fails: then it has a completion
	r.cq.want(100, abi.WCRemAccessErr)
}

func queueFlush(t *T) {
	r := t.qpPair()
	r.a.postRecv(50)
	r.copy(1, 0, 4096, 8)
	r.a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpWrite, RemoteAddr: r.mr.iova, RKey: r.mr.rkey ^ 0x55_5500}, r.mr.sge(0, 8))
	r.cq.want(1, abi.WCSuccess)
	r.cq.want(2, abi.WCRemAccessErr)
	t.until(func() bool { return r.a.query().State == abi.QPStateErr }, "the QP to move to ERR after a failed request")
	for i := range uint64(4) {
		r.copy(3+i, 0, 4096, 8)
	}
	for i := range uint64(4) {
		r.cq.want(3+i, abi.WCWRFlushErr)
	}
	r.rcq.want(50, abi.WCWRFlushErr)
	r.a.postRecv(51)
	r.rcq.want(51, abi.WCWRFlushErr)
}

func queueDropped(t *T) {
	r := t.qpPair()
	r.a.postRecv(1)
	r.b.postRecv(2)
	r.a.modify(abi.ModifyQP{State: abi.QPStateReset, Mask: abi.QPAttrState})
	r.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: r.b.qpn}, nil)
	r.rcq.empty()
	r.cq.empty()
	r.a.wantState(abi.QPStateReset)
}

// queueOperations checks every operation of an RC queue pair, its data and its completion.
func queueOperations(t *T) {
	r := t.qpPair()
	data := r.mr.bytes()
	fill := func(off, n int, seed byte) []byte {
		for i := range n {
			data[off+i] = seed + byte(i*7)
		}
		return bytes.Clone(data[off : off+n])
	}
	remote := abi.SendWQE{Flags: abi.SendSignaled, RKey: r.mr.rkey}
	do := func(op abi.Opcode, want abi.WCOpcode, to int, sgl ...abi.SGE) abi.CQE {
		w := remote
		w.WRID, w.Opcode, w.RemoteAddr, w.Imm = uint64(op)+100, op, r.mr.iova+uint64(to), 0x1234_5678
		r.a.post(w, sgl...)
		e := r.cq.want(w.WRID, abi.WCSuccess)
		if e.Opcode != want || e.QPN != r.a.qpn {
			t.Fatalf("%s: completion with opcode %s of QP %#x", op, e.Opcode, e.QPN)
		}
		return e
	}
	same := func(what string, at int, want []byte) {
		if !bytes.Equal(data[at:][:len(want)], want) {
			t.Fatalf("%s: the data is not what was sent", what)
		}
	}
	for _, n := range []int{0, 1, 1023, 1024, 5000} {
		b := fill(0, n, byte(n))
		do(abi.OpWrite, abi.WCOpWrite, 16<<10, r.mr.sge(0, n/2), r.mr.sge(n/2, n-n/2))
		same("WRITE", 16<<10, b)
		b = fill(0, n, byte(n+1))
		if e := do(abi.OpRead, abi.WCOpRead, 0, r.mr.sge(24<<10, n)); int(e.ByteLen) != n {
			t.Fatalf("READ of %d bytes: ByteLen %d", n, e.ByteLen)
		}
		same("READ", 24<<10, b)
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm, abi.OpWriteImm} {
			b = fill(0, n, byte(n+2+int(op)))
			r.b.postRecv(7, r.mr.sge(32<<10, 3000), r.mr.sge(40<<10, 3000))
			wcop := abi.WCOpSend
			if op == abi.OpWriteImm {
				wcop = abi.WCOpWrite
			}
			do(op, wcop, 48<<10, r.mr.sge(0, n))
			e := r.rcq.want(7, abi.WCSuccess)
			r.received(op, &e, n)
			if op == abi.OpWriteImm {
				same("WRITE with immediate data", 48<<10, b)
			} else {
				same("SEND", 32<<10, b[:min(n, 3000)])
				same("SEND", 40<<10, b[min(n, 3000):])
			}
		}
	}
	r.mr.store64(0, 40)
	remote.CompareAdd = 2
	if do(abi.OpFetchAdd, abi.WCOpFetchAdd, 0, r.mr.sge(8, 8)); r.mr.load64(0) != 42 || r.mr.load64(8) != 40 {
		t.Fatalf("FETCH_ADD of 2 to 40 made %d and returned %d", r.mr.load64(0), r.mr.load64(8))
	}
	remote.CompareAdd, remote.Swap = 42, 7
	if do(abi.OpCmpSwap, abi.WCOpCmpSwap, 0, r.mr.sge(8, 8)); r.mr.load64(0) != 7 || r.mr.load64(8) != 42 {
		t.Fatalf("CMP_SWAP of 42 by 7 made %d and returned %d", r.mr.load64(0), r.mr.load64(8))
	}
	if do(abi.OpCmpSwap, abi.WCOpCmpSwap, 0, r.mr.sge(8, 8)); r.mr.load64(0) != 7 || r.mr.load64(8) != 7 {
		t.Fatalf("CMP_SWAP that does not compare made %d and returned %d", r.mr.load64(0), r.mr.load64(8))
	}
}

// received checks a receive completion.
func (r *qpPair) received(op abi.Opcode, e *abi.CQE, n int) {
	want := abi.WCOpRecv
	if op == abi.OpWriteImm {
		want = abi.WCOpRecvWriteImm
	}
	if e.Opcode != want || e.QPN != r.b.qpn || int(e.ByteLen) != n {
		r.t.Fatalf("%s of %d bytes: receive completion %+v", op, n, *e)
	}
	if op == abi.OpSend == (e.Flags&abi.WCFlagImm != 0) || op != abi.OpSend && e.Imm != 0x1234_5678 {
		r.t.Fatalf("%s: receive completion with flags %#x and immediate %#x", op, e.Flags, e.Imm)
	}
}

func queueAtomicWrite(t *T) {
	r := t.qpPair()
	write := func(w abi.SendWQE, sges ...abi.SGE) {
		w.Opcode, w.Flags, w.RKey = abi.OpAtomicWrite, w.Flags|abi.SendSignaled, r.mr.rkey
		r.a.post(w, sges...)
	}
	const word = 0x0123_4567_89ab_cdef
	write(abi.SendWQE{WRID: 1, RemoteAddr: r.mr.iova + 8, Swap: word})
	if e := r.cq.want(1, abi.WCSuccess); e.Opcode != abi.WCOpAtomicWrite {
		t.Fatalf("its completion says %s", e.Opcode)
	}
	if v := r.mr.load64(8); v != word || r.mr.load64(0) != 0 || r.mr.load64(16) != 0 {
		t.Fatalf("%#x where %#x was to be written, %#x before and %#x behind it", v, uint64(word), r.mr.load64(0), r.mr.load64(16))
	}
	write(abi.SendWQE{WRID: 2, RemoteAddr: r.mr.iova + 4})
	r.cq.want(2, abi.WCLocQPOpErr)
}

func queueMaskedAtomics(t *T) {
	r := t.qpPair()
	do := func(op abi.Opcode, w abi.SendWQE, m abi.AtomicMasks) {
		w.WRID, w.Opcode, w.Flags, w.RemoteAddr, w.RKey, w.NumSGE = 5, op, abi.SendSignaled, r.mr.iova, r.mr.rkey, 1
		b := make([]byte, abi.SendWQEHeader+abi.AtomicMasksSize+16)
		w.Marshal(b)
		m.Marshal(b[abi.SendWQEHeader:])
		s := r.mr.sge(8, 8)
		s.Marshal(b[abi.SendWQEHeader+abi.AtomicMasksSize:])
		r.a.push(r.a.sq, b)
		r.cq.want(5, abi.WCSuccess)
	}
	check := func(what string, is, old uint64) {
		if r.mr.load64(0) != is || r.mr.load64(8) != old {
			t.Fatalf("%s: the word is %#x, want %#x; returned %#x, want %#x", what, r.mr.load64(0), is, r.mr.load64(8), old)
		}
	}
	r.mr.store64(0, 0x1122_3344_5566_7788)
	do(abi.OpMaskedCmpSwap, abi.SendWQE{CompareAdd: 0x88, Swap: 0xaaaa_0000_0000_00ff}, abi.AtomicMasks{SwapAdd: 0xffff_0000_0000_00ff, Compare: 0xff})
	check("masked CMP_SWAP", 0xaaaa_3344_5566_77ff, 0x1122_3344_5566_7788)
	do(abi.OpMaskedCmpSwap, abi.SendWQE{CompareAdd: 0x11, Swap: 0}, abi.AtomicMasks{SwapAdd: ^uint64(0), Compare: 0xff})
	check("masked CMP_SWAP that does not compare", 0xaaaa_3344_5566_77ff, 0xaaaa_3344_5566_77ff)
	r.mr.store64(0, 0xff_ff_ff_ff)
	do(abi.OpMaskedFetchAdd, abi.SendWQE{CompareAdd: 0x01_02_03_04}, abi.AtomicMasks{SwapAdd: 0x80_80_80_80}) // bytes: no carry between them
	check("masked FETCH_ADD", 0x00_01_02_03, 0xff_ff_ff_ff)
}

func queueAtomicAlignment(t *T) {
	r := t.qpPair()
	r.mr.store64(0, 5)
	r.mr.store64(8, 6)
	r.a.post(abi.SendWQE{
		WRID: 1, Opcode: abi.OpFetchAdd, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova + 4, RKey: r.mr.rkey, CompareAdd: 1 << 32,
	}, r.mr.sge(64, 8))
	r.cq.want(1, abi.WCRemInvReqErr)
	if r.mr.load64(0) != 5 || r.mr.load64(8) != 6 {
		t.Fatalf("an atomic at no multiple of 8 changed memory: %#x, %#x", r.mr.load64(0), r.mr.load64(8))
	}
}

// doorbellNobody checks that a doorbell of no queue does nothing, and that doorbells around it
// still work.
func doorbellNobody(t *T) {
	r := t.qpPair()
	for _, k := range []abi.DoorbellKind{abi.DoorbellSQ, abi.DoorbellRQ, abi.DoorbellCQArm, abi.DoorbellSRQ, 99} {
		r.ring(abi.Doorbell{Kind: k, Queue: 0x12_3456, Index: 1})
	}
	r.copy(1, 0, 4096, 100)
	r.cq.want(1, abi.WCSuccess)
	if s := r.state(); s != abi.StateReady {
		t.Fatalf("doorbells for queues that do not exist took the function to %s", s)
	}
}

// doorbellOrder sends, in one message, a doorbell that stops the function and then that of a
// command. They take effect in order, so the command must not be executed.
func doorbellOrder(t *T) {
	for range 3 {
		c := t.ready()
		c.allocPD()
		_, index := c.admin.write(abi.AdminOpAllocPD, nil)
		c.ring(
			badBell,
			abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index},
		)
		c.faulted(abi.FaultCommand)
		t.never(func() bool { _, ok := c.admin.poll(); return ok }, "a doorbell had an effect before one that was sent earlier")
		c.stream.goodbye()
	}
}

// doorbellSleeper checks that each kind of doorbell wakes a sleeping device.
func doorbellSleeper(t *T) {
	r := t.qpPair()
	for range 3 {
		time.Sleep(quiet)
		r.allocPD()
		time.Sleep(quiet)
		r.copy(1, 0, 4096, 8)
		r.cq.want(1, abi.WCSuccess)
		time.Sleep(quiet)
		r.cq.arm(r.cq.reader.Next()-1, 0) // an entry that is there
		r.cq.event()
	}
}

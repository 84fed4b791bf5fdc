package conform

import (
	"bytes"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var completionChecks = []check{
	{"cq.phase", "DEV-702", 0, cqPhase},
	{"cq.overflow", "DEV-705", 0, cqOverflow},
	{"cq.consumer", "DEV-705", 0, cqConsumer},
	{"cq.error-entry", "DEV-706", 0, cqErrorEntry},
	{"cq.arm", "DEV-707", 0, cqArm},
	{"cq.arm-solicited", "DEV-707", 0, cqArmSolicited},
	{"cq.arm-late", "DEV-708", 0, cqArmLate},
	{"cq.arm-ahead", "DEV-304", 0, cqArmAhead},
	{"cq.arm-word", "DEV-709", abi.FeatureArmWord, cqArmWord},
	{"cq.arm-word-solicited", "DEV-709", abi.FeatureArmWord, cqArmWordSolicited},
	{"cq.resize", "DEV-720", abi.FeatureExtendedVerbs, cqResize},
	{"cq.moderate", "DEV-721", abi.FeatureExtendedVerbs, cqModerate},
}

// nop completes one send: a small WRITE.
func (r *qpPair) nop(wrid uint64) { r.copy(wrid, 0, 4096, 8) }

// cqPhase checks three passes over the smallest queue, entry by entry in memory.
func cqPhase(t *T) {
	r := t.qpPair()
	small := r.newCQ(1)
	q := r.newQP(r.pdn, small, small, nil)
	q.connect(q.qpn)
	for i := range uint64(6) {
		q.post(abi.SendWQE{WRID: i + 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, r.mr.sge(8, 8))
		e := small.want(i+1, abi.WCSuccess)
		want := uint64(abi.Phase)
		if i/2%2 == 1 {
			want = 0
		}
		if e.Tail != want {
			t.Fatalf("entry %d of a queue of 2 has tail word %#x, want %#x", i, e.Tail, want)
		}
		if e.Timestamp == 0 {
			t.Fatalf("entry %d has no timestamp", i)
		}
		other := small.block.Bytes()[abi.QueueHeaderSize+int(i+1)%2*abi.CQESize:][:abi.CQESize]
		if i == 0 && !bytes.Equal(other, make([]byte, abi.CQESize)) {
			t.Fatalf("the device wrote to an entry that is not due")
		}
	}
}

func cqOverflow(t *T) {
	r := t.qpPair()
	small := r.newCQ(1)
	q := r.newQP(r.pdn, small, small, nil)
	q.connect(q.qpn)
	for i := range uint64(3) {
		q.post(abi.SendWQE{WRID: i, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, r.mr.sge(8, 8))
	}
	if e := r.stream.event(abi.EventCQError); e.Number != small.cqn {
		t.Fatalf("EventCQError names CQ %#x, want %#x", e.Number, small.cqn)
	}
	t.until(func() bool { return q.query().State == abi.QPStateErr }, "the QP to move to ERR after its CQ has overflowed")
	small.want(0, abi.WCSuccess)
	small.want(1, abi.WCSuccess)
	small.empty()
	r.nop(7) // other QPs go on
	r.cq.want(7, abi.WCSuccess)
}

func cqConsumer(t *T) {
	c := t.attach()
	for _, bad := range []struct {
		name  string
		value func(written uint32) uint32
	}{
		{"ahead of the entries written", func(w uint32) uint32 { return w + 1 }},
		{"behind an earlier one", func(w uint32) uint32 { return w - 5 }},
	} {
		c.enable()
		r := c.qpPair(nil)
		small := c.newCQ(2)
		q := c.newQP(r.pdn, small, small, nil)
		q.connect(q.qpn)
		post := func(i uint64) {
			q.post(abi.SendWQE{WRID: i, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, r.mr.sge(8, 8))
		}
		for i := range uint64(8) { // the device must have read the index once
			post(i)
			small.want(i, abi.WCSuccess)
		}
		t.noError(mem(small.block).Store32(0, bad.value(8)))
		for i := uint64(8); i < 14; i++ { // it reads the index when it needs room
			post(i)
		}
		if e := c.stream.event(abi.EventCQError); e.Number != small.cqn {
			t.Fatalf("a consumer index %s: EventCQError of CQ %d, want %d", bad.name, e.Number, small.cqn)
		}
		q.wantState(abi.QPStateErr)
		if s := c.state(); s != abi.StateReady {
			t.Fatalf("a consumer index %s took the function to %s", bad.name, s)
		}
		c.reset()
	}
}

func cqErrorEntry(t *T) {
	r := t.qpPair()
	r.b.postRecv(60, r.mr.sge(0, 16))
	r.a.post(abi.SendWQE{WRID: 61, Opcode: abi.OpSend}, r.mr.sge(4096, 64)) // longer than the receive
	e := r.rcq.want(60, abi.WCLocLenErr)
	if e.QPN != r.b.qpn || e.Opcode&0x80 == 0 {
		t.Fatalf("a receive that failed: QP %#x, opcode %#x, want %#x and bit 7", e.QPN, uint8(e.Opcode), r.b.qpn)
	}
	e = r.cq.want(61, abi.WCRemInvReqErr)
	if e.QPN != r.a.qpn || e.Opcode&0x80 != 0 {
		t.Fatalf("a send that failed: QP %#x, opcode %#x, want %#x and bit 7 clear", e.QPN, uint8(e.Opcode), r.a.qpn)
	}
}

func cqArm(t *T) {
	r := t.qpPair()
	r.nop(1)
	r.cq.want(1, abi.WCSuccess)
	r.cq.noEvent() // not armed
	r.cq.arm(1, 0)
	r.cq.noEvent() // no completion yet
	r.nop(2)
	r.cq.want(2, abi.WCSuccess)
	r.cq.event()
	r.nop(3)
	r.cq.want(3, abi.WCSuccess)
	r.cq.noEvent() // one event ends the arming
	r.cq.arm(2, 0) // entry 2 is there already
	r.cq.event()
	r.cq.noEvent()
	r.cq.arm(3, 0)
	r.cq.arm(3, abi.ArmSolicitedOnly) // keeps the request for any entry
	r.nop(4)
	r.cq.want(4, abi.WCSuccess)
	r.cq.event()
}

func cqArmSolicited(t *T) {
	r := t.qpPair()
	send := func(wrid uint64, flags uint8) {
		r.b.postRecv(wrid, r.mr.sge(0, 64))
		r.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: flags}, r.mr.sge(4096, 8))
		r.rcq.want(wrid, abi.WCSuccess)
	}
	r.rcq.arm(0, abi.ArmSolicitedOnly)
	send(1, 0)
	r.rcq.noEvent()
	send(2, abi.SendSolicited)
	r.rcq.event()
	r.rcq.arm(1, abi.ArmSolicitedOnly) // entry 1 is solicited, and there
	r.rcq.event()
	r.rcq.arm(2, abi.ArmSolicitedOnly)
	r.rcq.noEvent()
	r.b.postRecv(3, r.mr.sge(0, 4)) // too small: an error counts
	r.a.post(abi.SendWQE{WRID: 3, Opcode: abi.OpSend}, r.mr.sge(4096, 8))
	r.rcq.event()
	r.rcq.want(3, abi.WCLocLenErr)
}

func cqArmLate(t *T) {
	r := t.qpPair()
	for i := range uint64(10) {
		r.nop(i)
		r.cq.want(i, abi.WCSuccess)
	}
	for _, index := range []uint32{9, 5, 0, 0xffff_fff0, 0x8000_0020} {
		r.cq.arm(index, 0)
		r.cq.event()
	}
	if s := r.state(); s != abi.StateReady {
		t.Fatalf("arming far behind took the function to %s", s)
	}
}

func cqArmAhead(t *T) {
	r := t.qpPair()
	r.cq.arm(1, 0) // no entry was written: 0 would be next
	r.cq.event()
	if s := r.state(); s != abi.StateReady {
		t.Fatalf("arming ahead took the function to %s", s)
	}
}

func cqArmWord(t *T) {
	r := t.qpPair()
	r.nop(1)
	r.cq.want(1, abi.WCSuccess)
	r.cq.noEvent() // the word of a fresh CQ requests no event
	r.cq.armWord(1, 0)
	r.cq.noEvent() // nothing happens when it is written
	r.nop(2)
	r.cq.want(2, abi.WCSuccess)
	r.cq.event()
	r.nop(3)
	r.cq.want(3, abi.WCSuccess)
	r.cq.noEvent() // one event for each number
	r.cq.armWord(5, 0)
	for i := uint64(4); i < 6; i++ { // entries 3 and 4
		r.nop(i)
		r.cq.want(i, abi.WCSuccess)
	}
	r.cq.noEvent()
	r.nop(6)
	r.cq.want(6, abi.WCSuccess)
	r.cq.event()
	// The doorbell is independent of the word.
	r.cq.armWord(6, 0)
	r.cq.arm(6, 0)
	r.nop(7)
	r.cq.want(7, abi.WCSuccess)
	r.cq.event()
}

func cqArmWordSolicited(t *T) {
	r := t.qpPair()
	send := func(wrid uint64, flags uint8) abi.CQE {
		r.b.postRecv(wrid, r.mr.sge(0, 64))
		r.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: flags}, r.mr.sge(4096, 8))
		return r.rcq.want(wrid, abi.WCSuccess)
	}
	r.rcq.armWord(0, abi.CQArmSolicited)
	if e := send(1, 0); e.Flags&abi.WCFlagSolicited != 0 {
		t.Fatalf("the receive of a send that is not solicited has WCFlagSolicited")
	}
	r.rcq.noEvent()
	if e := send(2, abi.SendSolicited); e.Flags&abi.WCFlagSolicited == 0 {
		t.Fatalf("the receive of a solicited send has no WCFlagSolicited")
	}
	r.rcq.event()
	r.rcq.armWord(2, abi.CQArmSolicited)
	r.b.postRecv(3, r.mr.sge(0, 4))
	r.a.post(abi.SendWQE{WRID: 3, Opcode: abi.OpSend}, r.mr.sge(4096, 8))
	r.rcq.want(3, abi.WCLocLenErr)
	r.rcq.event()
}

func cqResize(t *T) {
	r := t.qpPair()
	for i := range uint64(4) {
		r.nop(i)
	}
	r.cq.want(0, abi.WCSuccess)
	t.until(func() bool { v, _ := mem(r.cq.block).Load32(64); return v == 4 }, "four entries")
	old := *r.cq
	r.cq.area(1)
	r.refuse(abi.AdminOpResizeCQ, &abi.ResizeCQ{CQN: r.cq.cqn, Log2Entries: 1, Levels: r.cq.list.Levels, Pages: r.cq.list.Root}, abi.StatusInvalidArgument)
	r.cq.area(2)
	r.must(abi.AdminOpResizeCQ, &abi.ResizeCQ{CQN: r.cq.cqn, Log2Entries: 2, Levels: r.cq.list.Levels, Pages: r.cq.list.Root}, nil)
	r.cq.event()
	before := bytes.Clone(old.block.Bytes())
	for i := uint64(4); i < 9; i++ {
		r.nop(i)
		r.cq.want(i, abi.WCSuccess)
	}
	old.want(1, abi.WCSuccess)
	old.want(2, abi.WCSuccess)
	old.want(3, abi.WCSuccess)
	copy(before, old.block.Bytes()[:64]) // the driver's own line
	if !bytes.Equal(before, old.block.Bytes()) {
		t.Fatalf("the device wrote to the old area after ResizeCQ had completed")
	}
}

func cqModerate(t *T) {
	r := t.qpPair()
	const period = 60_000 // microseconds
	r.must(abi.AdminOpModifyCQ, &abi.ModifyCQ{CQN: r.cq.cqn, Count: 3, Period: period}, nil)
	// By time. The device may have read its clock before the post and then have waited for its
	// processor, so an event that is too early is tried again.
	taken := uint32(0)
	for early := 0; ; {
		r.cq.arm(taken, 0)
		start := time.Now()
		r.nop(0)
		r.cq.want(0, abi.WCSuccess)
		r.cq.event()
		taken++
		d := time.Since(start)
		if d >= period/2*time.Microsecond {
			break
		}
		if early++; early == 5 {
			t.Fatalf("an event that waits for 3 completions or 60 ms came after one and %v", d)
		}
	}
	r.must(abi.AdminOpModifyCQ, &abi.ModifyCQ{CQN: r.cq.cqn, Count: 3, Period: 65535}, nil)
	for round := range uint64(5) { // by number: five times 65 ms would be 325
		r.cq.arm(taken+uint32(3*round), 0)
		for i := range uint64(3) {
			r.nop(i)
			r.cq.want(i, abi.WCSuccess)
		}
		r.cq.event()
	}
	r.must(abi.AdminOpModifyCQ, &abi.ModifyCQ{CQN: r.cq.cqn}, nil)
	r.cq.arm(taken+15, 0)
	r.nop(1)
	r.cq.event()
}

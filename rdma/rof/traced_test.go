package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// taken are the events of a ring, without their times.
func taken(r *trace.Ring) []trace.Event {
	list, _ := r.Take(nil)
	for i := range list {
		list[i].At = 0
	}
	return list
}

// outside makes the stage's connection one that leaves the NIC, whose packets are sealed.
func (s *stage) outside() { s.end.notes.Wire, s.end.notes.Flags = traced(true) }

// TestEachStepOfATracedRequestIsNoted: what is noted of a request's packets, inside a NIC and of one that leaves it.
func TestEachStepOfATracedRequestIsNoted(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		s := newStage(t, true, nil)
		if leaves {
			s.outside()
		}
		r := s.trace(testQPN)
		q := post(abi.OpRead, 2*testSegment)
		a, b := s.issue(q), s.issue(q)
		s.request(a)
		r.SealedPacket()
		s.answer(a, falcon.CmplAck, synNone, reply(ib.ReadRespOnly, 1, nil, make([]byte, testSegment)))
		s.answer(b, falcon.CmplLocalTO, synNone, nil)
		over, _ := traced(leaves)
		event := func(kind trace.Kind, sn uint32, flags uint8) trace.Event {
			return trace.Event{Kind: kind, Work: testQPN, Index: 40, Extra: sn, Flags: flags, Wire: over}
		}
		want := []trace.Event{
			event(trace.Issued, 1, trace.Loopback), event(trace.Scheduled, 1, trace.Loopback), event(trace.Acked, 1, trace.Loopback),
			event(trace.Acked, 2, trace.Loopback),
		}
		if leaves {
			want = []trace.Event{
				event(trace.Issued, 1, 0), event(trace.Scheduled, 1, 0), event(trace.Sealed, 1, 0),
				event(trace.Acked, 1, 0), event(trace.Acked, 2, 0),
			}
		}
		if got := taken(r); !slices.Equal(got, want) {
			t.Errorf("leaves the NIC %t:\n%+v\nwant\n%+v", leaves, got, want)
		}
	}
}

// TestOnlyTheTracedQueuePairIsNoted: a packet that could not be filled is not sealed, and what belongs to another
// queue pair than the traced one is not noted.
func TestOnlyTheTracedQueuePairIsNoted(t *testing.T) {
	s := newStage(t, true, nil)
	s.outside()
	r := s.trace(0)
	c := s.issue(post(abi.OpWrite, 8))
	taken(r)
	s.user.gone = true
	if _, err := s.Fill(falcon.TxnPush, c.tag, make([]byte, 400)); err == nil {
		t.Fatal("filled")
	}
	r.SealedPacket()
	if got := taken(r); len(got) != 1 || got[0].Kind != trace.Scheduled {
		t.Errorf("%+v", got)
	}

	s = newStage(t, true, nil)
	r = s.trace(testQPN + 1)
	c = s.issue(post(abi.OpWrite, 8))
	s.request(c)
	s.answer(c, falcon.CmplAck, synNone, nil)
	s.push(send(ib.SendOnly, 1, 1, 0), nil)
	p := s.pull(read(2, 8), readHeader+8)
	if _, _, err := s.response(p); err != nil {
		t.Error(err)
	}
	s.Handle(testNow, &falcon.Event{Kind: falcon.EvResponseDone, Tag: p.tag})
	if got := taken(r); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestEachStepOfThePeersPacketsIsNoted: what is noted of the peer's packets and of the responses to them: that a
// completion follows where a message that takes a receive ends.
func TestEachStepOfThePeersPacketsIsNoted(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		s, stays := newStage(t, true, nil), trace.Loopback
		over, _ := traced(leaves)
		if leaves {
			s.outside()
			stays = 0
		}
		r := s.trace(0)
		s.push(send(ib.SendFirst, 1, 1, 0), make([]byte, 8))
		s.push(send(ib.SendLast, 2, 1, 8), make([]byte, 4))
		s.push(headers(ib.WriteOnly, 3), make([]byte, 12))
		h := read(4, 16)
		h.SETH.RMSN = 1
		p := s.pull(h, readHeader+16)
		if _, _, err := s.response(p); err != nil {
			t.Fatal(err)
		}
		r.SealedPacket()
		s.Handle(testNow, &falcon.Event{Kind: falcon.EvResponseDone, Tag: p.tag})
		s.NoteConcluded(4)
		delivered := func(rsn uint32, op ib.Opcode, n uint32, flags uint8) trace.Event {
			return trace.Event{
				Kind: trace.Delivered, Conn: 5, Index: rsn, Op: uint8(op), Arg: testQPN, Extra: n,
				Flags: flags | stays, Wire: over,
			}
		}
		responded := func(kind trace.Kind) trace.Event {
			return trace.Event{Kind: kind, Conn: 5, Index: 4, Extra: 4, Flags: trace.Responder | stays}
		}
		want := []trace.Event{
			delivered(1, ib.SendFirst, 8, 0), delivered(2, ib.SendLast, 4, trace.Wanted),
			delivered(3, ib.WriteOnly, 12, 0),
			delivered(4, ib.ReadRequest, 16, trace.Answering), responded(trace.Scheduled),
		}
		if leaves {
			want = append(want, responded(trace.Sealed))
		}
		want = append(want, responded(trace.Acked), trace.Event{
			Kind: trace.Concluded, Conn: 5, Index: 4,
			Flags: trace.Loopback | trace.Responder,
		})
		if got := taken(r); !slices.Equal(got, want) {
			t.Errorf("leaves the NIC %t:\n%+v\nwant\n%+v", leaves, got, want)
		}
	}
	var a *transport.Account
	noteConcluded(a, 5, 4) // one that nobody has
	noteConcluded(new(transport.Account), 5, 4)
}

// TestATracedDatagramIsNotedWhenSent: a datagram of the traced queue pair is noted when the pipe takes it.
func TestATracedDatagramIsNotedWhenSent(t *testing.T) {
	for _, qpn := range []uint32{0, 8, 9} {
		o := newOffice(t, true)
		at := int64(0)
		r := trace.NewRing(64, func() int64 { at++; return at }, qpn)
		o.account.Trace = r
		o.hold(5, &datagram{Datagram: transport.Datagram{From: 8, Work: 3, Serial: 6}})
		if _, err := o.Fill(falcon.TxnPush, 5, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		r.SealedPacket() // of another connection: this one does not leave the NIC
		o.NoteConcluded(7)
		want := []trace.Event{
			{Kind: trace.Scheduled, Work: 8, Index: 3, Extra: 6, Flags: trace.Loopback, Wire: inside},
			{Kind: trace.Concluded, Conn: 5, Index: 7, Flags: trace.Loopback | trace.Responder},
		}
		if qpn == 9 {
			want = want[1:]
		}
		if got := taken(r); !slices.Equal(got, want) {
			t.Errorf("queue pair %d:\n%+v\nwant\n%+v", qpn, got, want)
		}
	}
}

// TestALinkNotesWhenTracedDatagramsBeginAndEnd: a link notes when it takes a datagram of the traced queue pair, and when that is
// over.
func TestALinkNotesWhenTracedDatagramsBeginAndEnd(t *testing.T) {
	for _, qpn := range []uint32{8, 9} {
		l := newLines(t)
		k, _ := l.open(1)
		at := int64(0)
		r := trace.NewRing(64, func() int64 { at++; return at }, qpn)
		l.objects.Account.Trace = r
		d := write(new(sender), 1)
		d.Datagram.From, d.Work, d.Serial = 8, 3, 6
		k.Send(l.now, d)
		k.sent(l.now, 0, true)
		want := []trace.Event{
			{Kind: trace.Issued, Work: 8, Index: 3, Extra: 6, Flags: trace.Owed, Wire: overFalcon},
			{Kind: trace.Acked, Work: 8, Index: 3, Extra: 1, Wire: overFalcon},
		}
		if qpn == 9 {
			want = nil
		}
		if got := taken(r); !slices.Equal(got, want) {
			t.Errorf("queue pair %d:\n%+v\nwant\n%+v", qpn, got, want)
		}
	}
}

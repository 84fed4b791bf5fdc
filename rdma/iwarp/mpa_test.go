package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestBothEndsLearnWhatTheOtherSays: private data, depths and CRCs of each end reach the other, by
// both revisions, and neither end has more READs under way than the other serves.
func TestBothEndsLearnWhatTheOtherSays(t *testing.T) {
	for _, c := range []struct {
		name     string
		revision uint8
		settings [2]iwarp.Settings
		ord      [2]int
	}{
		{"revision 2", 2, [2]iwarp.Settings{{IRD: 4, ORD: 9, Private: []byte("hello")}, {IRD: 6, ORD: 7, Private: []byte("world!")}}, [2]int{6, 4}},
		{"revision 1", 1, [2]iwarp.Settings{{Revision: 1, IRD: 4, ORD: 9, Private: []byte("hello")}, {IRD: 6, ORD: 7}}, [2]int{9, 7}},
		{"no READs", 2, [2]iwarp.Settings{{}, {}}, [2]int{}},
		{"CRC", 2, [2]iwarp.Settings{{CRC: true}, {}}, [2]int{}},
		{"CRC of the other", 2, [2]iwarp.Settings{{}, {CRC: true}}, [2]int{}},
		{"longest private data", 2, [2]iwarp.Settings{{Private: make([]byte, iwarp.MaxPrivate)}, {Private: make([]byte, iwarp.MaxPrivate)}}, [2]int{}},
	} {
		w := iwarptest.New(t, 1)
		l := w.Connect(0, iwarptest.Shape{Cut: 7, Delay: 1000}, c.settings)
		for i, conn := range l.Conns {
			peer, want := *conn.Peer(), c.settings[1-i]
			if want.Revision = c.revision; c.revision == 1 {
				want.IRD, want.ORD = 0, 0
			}
			if i == 0 {
				want.CRC = want.CRC || c.settings[0].CRC
			}
			if peer.Revision != want.Revision || peer.CRC != want.CRC || peer.IRD != want.IRD || peer.ORD != min(want.ORD, cmpORD(i, c.ord)) || !bytes.Equal(peer.Private, want.Private) {
				t.Errorf("%s: end %d learns %+v, want %+v", c.name, i, peer, want)
			}
			if conn.ORD() != c.ord[i] {
				t.Errorf("%s: end %d may have %d under way, want %d", c.name, i, conn.ORD(), c.ord[i])
			}
		}
		if !slices.Equal(l.Events[0], []iwarp.Event{iwarp.Established}) || !slices.Equal(l.Events[1], []iwarp.Event{iwarp.Requested}) {
			t.Errorf("%s: events %v", c.name, l.Events)
		}
	}
}

// cmpORD returns the most that the frame of end i's peer may say as its ORD: a reply says what was
// agreed.
func cmpORD(i int, ord [2]int) int {
	if i == 0 {
		return ord[1]
	}
	return 1 << 14
}

// TestARejectedConnectionEndsForBoth: the end that asked gets the private data of the rejection, and
// both streams are closed.
func TestARejectedConnectionEndsForBoth(t *testing.T) {
	for _, revision := range []uint8{1, 2} {
		w := iwarptest.New(t, 1)
		l := w.Dial(0, iwarptest.Shape{Delay: 1000}, [2]iwarp.Settings{{Revision: revision}, {Private: []byte("no")}})
		l.Rejects = true
		w.Settle(0)
		if want := []iwarp.Event{iwarp.Rejected, iwarp.Finish, iwarp.Gone}; !slices.Equal(l.Events[0], want) || string(l.Conns[0].Peer().Private) != "no" {
			t.Errorf("revision %d: events %v, private data %q", revision, l.Events[0], l.Conns[0].Peer().Private)
		}
		if want := []iwarp.Event{iwarp.Requested, iwarp.Finish, iwarp.Gone}; !slices.Equal(l.Events[1], want) {
			t.Errorf("revision %d: events %v", revision, l.Events[1])
		}
		for i, c := range l.Conns {
			if why, reset := c.Ending(); why == "" || reset {
				t.Errorf("revision %d, end %d: %q, reset %t", revision, i, why, reset)
			}
		}
	}
}

// TestASilentPeerIsGivenUp: a stream on which no frame comes in time, or only a part of one, is reset.
func TestASilentPeerIsGivenUp(t *testing.T) {
	for name, b := range map[string][]byte{"nothing": nil, "a part of a request": usualRequest().Append(nil)[:19]} {
		p := called(t)
		p.send(b)
		p.now = p.e.Deadline()
		p.run()
		if _, reset := p.c.Ending(); !slices.Equal(p.events, []iwarp.Event{iwarp.Gone}) || !reset || p.now > 11e9+1e9 || p.e.Stats().Conns != 0 {
			t.Errorf("%s: events %v at %d, reset %t", name, p.events, p.now, reset)
		}
	}
}

// TestAPeerThatDoesNotCloseIsGivenUp: a stream whose peer does not close its side after a Terminate is
// reset.
func TestAPeerThatDoesNotCloseIsGivenUp(t *testing.T) {
	p := connected(t)
	p.message(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 9}, nil)
	p.terminated()
	p.send(make([]byte, 1000))
	p.now = p.e.Deadline()
	p.run()
	if _, reset := p.c.Ending(); !slices.Equal(p.events, []iwarp.Event{iwarp.Requested, iwarp.Finish, iwarp.Gone}) || !reset {
		t.Errorf("events %v, reset %t", p.events, reset)
	}
}

// TestAWrongFrameEndsTheStream: what is no frame of MPA, or one of an unknown revision, ends the
// stream at the first wrong byte, without an answer.
func TestAWrongFrameEndsTheStream(t *testing.T) {
	future := usualRequest()
	future.Revision = 3
	for name, b := range map[string][]byte{
		"HTTP": []byte("GET / HTTP/1.1\r\n"), "a reply": (&wire.Frame{Reply: true, Revision: 1}).Append(nil), "a revision that there is not": future.Append(nil),
	} {
		p := called(t)
		p.send(b)
		if why, reset := p.c.Ending(); !slices.Equal(p.events, []iwarp.Event{iwarp.Gone}) || !reset || why == "" || p.next() != nil && len(p.next()) > 0 || p.e.Stats().Wrong != 1 {
			t.Errorf("%s: events %v, %q", name, p.events, why)
		}
	}
	p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t)}
	s := iwarptest.Usual()
	s.Revision = 1
	p.c = p.e.Connect(0, 1460, &s)
	p.frame(false)
	p.send((&wire.Frame{Reply: true, Revision: 2}).Append(nil))
	if !slices.Equal(p.events, []iwarp.Event{iwarp.Gone}) {
		t.Errorf("a reply of a later revision than was asked for: events %v", p.events)
	}
}

// TestTheResponderSendsNothingBeforeTheFirstFPDU (RFC 5044 §7.1.2): requests wait until the peer has
// sent an FPDU. A peer that did not agree to begin may be waiting too, so it gets them after a second, and is
// reminded until it sends something.
func TestTheResponderSendsNothingBeforeTheFirstFPDU(t *testing.T) {
	waiting := func(p *peer) *peer {
		p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
		p.end.issue(p.now)
		p.sends(999e6)
		return p
	}
	p := waiting(connected(t))
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
	p.sends(0, wire.OpSend)

	p = waiting(connected(t))
	p.sends(2e6, wire.OpSend)
	p.c.Acknowledged(p.now, p.c.Written())
	p.sends(101e6, wire.OpWrite)
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
	p.sends(100e9)

	p = called(t)
	f := usualRequest()
	f.Enhanced.PeerToPeer, f.Enhanced.RTR = true, wire.RTRWrite
	p.send(f.Append(nil))
	s := iwarptest.Usual()
	p.c.Accept(p.now, &s)
	p.frame(true)
	p.crc = true
	p.end.attach(p.c)
	waiting(p).sends(100e9)
}

// TestConnectionsBeginWithTheMessageThatBothEndsHave (RFC 6581 §9): of a peer-to-peer connection the
// initiator's first message has no bytes and nobody sees it; the responder chooses a WRITE if it can.
// A SEND, which would take a receive, is not chosen.
func TestConnectionsBeginWithTheMessageThatBothEndsHave(t *testing.T) {
	for _, c := range []struct {
		name   string
		offers wire.RTR
		want   wire.RTR
		rtr    wire.Header
		body   []byte
	}{
		{"all", wire.RTRSend | wire.RTRWrite | wire.RTRRead, wire.RTRWrite, wire.Header{Opcode: wire.OpWrite, Last: true}, nil},
		{"READ", wire.RTRSend | wire.RTRRead, wire.RTRRead, wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: 1}, (&wire.ReadRequest{SinkSTag: 5}).Append(nil)},
	} {
		p := called(t)
		f := usualRequest()
		f.Enhanced.PeerToPeer, f.Enhanced.RTR = true, c.offers
		p.send(f.Append(nil))
		s := iwarp.Settings{CRC: true} // it serves no READs otherwise
		p.c.Accept(p.now, &s)
		reply := p.frame(true)
		if !reply.Enhanced.PeerToPeer || reply.Enhanced.RTR != c.want {
			t.Errorf("%s: reply %+v", c.name, reply)
		}
		p.crc = true
		p.end.attach(p.c)
		p.message(c.rtr, c.body)
		p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
		p.end.issue(p.now)
		list := p.segments()
		if c.want == wire.RTRRead {
			if len(list) == 0 || list[0].Opcode != wire.OpReadResponse || list[0].STag != 5 || !list[0].Last {
				t.Fatalf("%s: sent %+v", c.name, list)
			}
			list = list[1:]
		}
		if len(list) != 1 || list[0].Opcode != wire.OpSend || p.end.ended || p.end.log != nil || p.end.account.PushesRx+p.end.account.PullsRx != 0 {
			t.Errorf("%s: sent %+v, log %v", c.name, list, p.end.log)
		}
	}
	p := called(t)
	f := usualRequest()
	f.Enhanced.PeerToPeer, f.Enhanced.RTR = true, wire.RTRSend
	p.send(f.Append(nil))
	if reply := p.frame(true); !reply.Reject || !slices.Equal(p.events, []iwarp.Event{iwarp.Finish}) {
		t.Errorf("a peer that can only begin by a SEND: %+v, events %v", reply, p.events)
	}
}

// sends checks what the other end sends after a while, and that its WRITEs have no bytes.
func (p *peer) sends(after transport.Time, want ...wire.Opcode) {
	p.t.Helper()
	p.now += after
	p.run()
	var got []wire.Opcode
	for _, x := range p.segments() {
		if got = append(got, x.Opcode); x.Opcode == wire.OpWrite && len(x.body) > 0 {
			p.t.Fatalf("a WRITE of %d bytes", len(x.body))
		}
	}
	if !slices.Equal(got, want) {
		p.t.Fatalf("after %d ns: %v, want %v", after, got, want)
	}
}

// TestAPeerThatDoesNotAcknowledgeGetsAWriteOfNoBytes: one, until it acknowledges something.
func TestAPeerThatDoesNotAcknowledgeGetsAWriteOfNoBytes(t *testing.T) {
	p := connected(t)
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
	send := func() {
		p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
		p.end.issue(p.now)
		p.sends(0, wire.OpSend)
	}
	send()
	p.sends(2e6, wire.OpWrite)
	p.sends(1e9)
	send()
	p.sends(1e9) // it has one already
	p.c.Acknowledged(p.now, p.c.Written())
	p.sends(1e9)
	send()
	p.sends(2e6, wire.OpWrite)
}

// TestAPeerThatMissedTheFirstMessageGetsItAgain: eight times, each time after twice as long, unless it sends
// something.
func TestAPeerThatMissedTheFirstMessageGetsItAgain(t *testing.T) {
	for heard := range 9 {
		p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t), crc: true}
		s := iwarptest.Usual()
		p.c = p.e.Connect(0, 1460, &s)
		p.frame(false)
		reply := wire.Frame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: wire.Enhanced{PeerToPeer: true, RTR: wire.RTRWrite, IRD: 8, ORD: 8}}
		p.send(reply.Append(nil))
		p.end.attach(p.c)
		p.sends(0, wire.OpWrite)
		for n := range heard {
			p.sends(99e6 << n)
			p.sends(2e6<<n, wire.OpWrite)
		}
		if heard == 8 {
			p.sends(100e9)
		}
		p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
		p.sends(100e9)
	}
}

// TestAnInitiatorBeginsAsTheReplySays: with the message that the reply chose, or with none; a reply
// that it cannot fulfil it answers by Terminate (RFC 6581 §8).
func TestAnInitiatorBeginsAsTheReplySays(t *testing.T) {
	for _, c := range []struct {
		name     string
		enhanced wire.Enhanced
		first    wire.Opcode
		cause    wire.Cause
	}{
		{"WRITE", wire.Enhanced{PeerToPeer: true, RTR: wire.RTRWrite, IRD: 8, ORD: 8}, wire.OpWrite, 0},
		{"READ", wire.Enhanced{PeerToPeer: true, RTR: wire.RTRRead, IRD: 8, ORD: 8}, wire.OpReadRequest, 0},
		{"not peer to peer", wire.Enhanced{IRD: 8, ORD: 8}, wire.OpSend, 0},
		{"depths left to programs", wire.Enhanced{IRD: wire.AnyDepth, ORD: wire.AnyDepth}, wire.OpSend, 0},
		{"SEND", wire.Enhanced{PeerToPeer: true, RTR: wire.RTRSend, IRD: 8, ORD: 8}, wire.OpTerminate, wire.NoCommonRTR},
		{"more READs than it serves", wire.Enhanced{IRD: 8, ORD: 17}, wire.OpTerminate, wire.InsufficientIRD},
	} {
		p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t), crc: true}
		s := iwarptest.Usual()
		p.c = p.e.Connect(0, 1460, &s)
		if f := p.frame(false); f.Revision != 2 || !f.Enhanced.PeerToPeer || f.Enhanced.RTR != wire.RTRWrite|wire.RTRRead || f.Enhanced.IRD != 16 || f.Enhanced.ORD != 16 {
			t.Fatalf("request %+v", f)
		}
		reply := wire.Frame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: c.enhanced}
		p.send(reply.Append(nil))
		if c.first == wire.OpTerminate {
			if got := p.terminated(); got.Cause != c.cause || got.DDP != nil || slices.Contains(p.events, iwarp.Established) {
				t.Errorf("%s: %v, %+v, events %v", c.name, got.Cause, got, p.events)
			}
			continue
		}
		p.end.attach(p.c)
		p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
		p.end.issue(p.now)
		list := p.segments()
		if list[0].Opcode != c.first || len(list[0].body) > wire.ReadRequestLen || list[len(list)-1].Opcode != wire.OpSend {
			t.Fatalf("%s: sent %+v", c.name, list)
		}
		if c.first == wire.OpReadRequest { // its answer is nobody's
			r, _ := wire.ParseReadRequest(list[0].body)
			p.message(wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: r.SinkSTag, TO: r.SinkTO}, nil)
		}
		p.end.post(abi.SendWQE{Opcode: abi.OpRead}, 8)
		p.end.issue(p.now)
		if list = p.segments(); len(list) != 1 || list[0].Opcode != wire.OpReadRequest || p.end.ended || p.end.log != nil {
			t.Errorf("%s: sent %+v, log %v, ended %s", c.name, list, p.end.log, p.end.why)
		}
	}
}

// TestMarkersAreInsertedForAPeerThatWantsThem (RFC 5044 §4.2): every 512 bytes from the first FPDU on,
// and each FPDU with its markers fits into a segment of TCP.
func TestMarkersAreInsertedForAPeerThatWantsThem(t *testing.T) {
	p := called(t)
	f := wire.Frame{Revision: 1, CRC: true, Markers: true}
	p.send(f.Append(nil))
	s := iwarptest.Usual()
	p.c.Accept(p.now, &s)
	if reply := p.frame(true); reply.Markers || reply.Revision != 1 {
		t.Fatalf("reply %+v", reply)
	}
	p.end.attach(p.c)
	p.crc = true
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil) // no markers this way
	r := p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 20000)
	for i := range r.data {
		r.data[i] = byte(i * 7)
	}
	p.end.issue(p.now)
	var stream []byte
	for b := p.next(); len(b) > 0; b = p.next() {
		if len(b) > 1460 || len(stream) < 10000 && len(b) < 1440 {
			t.Fatalf("an FPDU of %d bytes", len(b))
		}
		stream = append(stream, b...)
	}
	var plain, got []byte // without markers; the CRCs count those, too
	for at := 0; at < len(stream); at += wire.MarkerInterval {
		plain = append(plain, stream[at+wire.MarkerLen:min(len(stream), at+wire.MarkerInterval)]...)
	}
	for len(plain) > 0 {
		ulpdu, n, err := wire.ParseFPDU(plain, false)
		if err != nil {
			t.Fatal(err)
		}
		plain, got = plain[n:], append(got, ulpdu[wire.UntaggedLen:]...)
	}
	if !bytes.Equal(got, r.data) {
		t.Error("other data")
	}
}

// TestFPDUsOfAnyAlignmentAreTaken (RFC 5044 §5): a stream that is cut into pieces of every size means
// the same, with and without CRC.
func TestFPDUsOfAnyAlignmentAreTaken(t *testing.T) {
	for _, crc := range []bool{false, true} {
		for _, cut := range []int{1, 2, 3, 5, 17, 1000, 70000} {
			p := called(t)
			f := usualRequest()
			f.CRC = crc
			stream := f.Append(nil)
			s := iwarptest.Usual()
			s.CRC = false
			p.send(stream)
			p.c.Accept(p.now, &s)
			p.frame(true)
			p.end.attach(p.c)
			p.end.receives = 50
			stream = stream[:0]
			var want [][]byte
			for i := range 50 {
				body := bytes.Repeat([]byte{byte(i)}, i*i%900)
				if i == 40 { // the longest FPDU that there is
					body = bytes.Repeat([]byte{byte(i)}, wire.MaxULPDU-wire.UntaggedLen)
				}
				want = append(want, body)
				stream = append(stream, fpdu(wire.Header{Opcode: wire.OpSend, Last: true, MSN: uint32(i + 1)}, body, crc)...)
			}
			for piece := range slices.Chunk(stream, cut) {
				p.send(piece)
			}
			if len(p.end.messages) != 50 {
				t.Fatalf("CRC %t, pieces of %d: %d messages, ended %q", crc, cut, len(p.end.messages), p.end.why)
			}
			for i, m := range p.end.messages {
				if !bytes.Equal(m.data, want[i]) {
					t.Fatalf("CRC %t, pieces of %d: message %d is another one", crc, cut, i)
				}
			}
			if p.e.Stats().Buffered != 0 || p.e.Stats().Received != 50 {
				t.Errorf("CRC %t, pieces of %d: %+v", crc, cut, p.e.Stats())
			}
		}
	}
}

// TestInputWaitsForTheQueuePair: an end takes nothing from the stream between the request and the
// queue pair.
func TestInputWaitsForTheQueuePair(t *testing.T) {
	p := called(t)
	b := fpdu(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}, []byte{1, 2, 3}, true)
	all := append(usualRequest().Append(nil), b...)
	take := func(want int) {
		t.Helper()
		n := p.c.Receive(p.now, all)
		if all = all[n:]; n != want {
			t.Fatalf("%d bytes are taken, want %d", n, want)
		}
	}
	take(len(all) - len(b))
	take(0)
	s := iwarptest.Usual()
	p.c.Accept(p.now, &s)
	take(0)
	p.end.receives = 1
	p.end.attach(p.c)
	take(len(b))
	if len(p.end.messages) != 1 {
		t.Errorf("%d messages", len(p.end.messages))
	}
}

// TestACorruptedFPDUEndsTheStream (RFC 5044 §8): nothing of it, nor behind it, is taken, and the peer
// is told.
func TestACorruptedFPDUEndsTheStream(t *testing.T) {
	p := connected(t)
	p.end.receives = 2
	b := fpdu(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}, []byte{1, 2, 3}, true)
	b[25] ^= 1
	p.send(append(b, fpdu(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 1}, nil, true)...))
	if got := p.terminated(); len(p.end.messages) != 0 {
		t.Errorf("%v, %d messages", got.Cause, len(p.end.messages))
	} else if got.Cause != wire.CRCMismatch || got.DDP != nil || p.end.status != abi.WCRetryExcErr {
		t.Errorf("%+v, ended with %v", got, p.end.status)
	}
}

// TestAnFPDUThatNeverEndsTakesOneBuffer: a peer that begins the longest FPDU and sends it byte by byte
// costs one buffer, which is there again when the stream is lost.
func TestAnFPDUThatNeverEndsTakesOneBuffer(t *testing.T) {
	p := connected(t)
	p.send(binary.BigEndian.AppendUint16(nil, wire.MaxULPDU))
	for range 10 {
		p.send(make([]byte, 6000))
	}
	if n := p.e.Stats().Buffered; n > 1<<17 {
		t.Errorf("%d bytes are buffered", n)
	}
	p.c.Lost(p.now, "reset")
	if n := p.e.Stats().Buffered; n != 0 || !p.end.ended {
		t.Errorf("%d bytes are buffered behind the end", n)
	}
}

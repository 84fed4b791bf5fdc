package rof

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// office is the connection of a link over a pipe of the test.
type office struct {
	*datagramConn
	lines *lines
	link  *Link
	pipe  *pipe
}

func newOffice(t testing.TB, ordered bool) *office {
	t.Helper()
	l := newLines(t)
	k, p := l.To(address(1), ordered).(*Link), newPipe(976)
	p.cfg.Ordered = ordered
	k.Want(l.now)
	l.connect(k, p)
	return &office{k.conn, l, k, p}
}

// arrives delivers a packet of the peer, and returns the answer.
func (o *office) arrives(b []byte) call {
	o.e.delivered = verbs.Arrival{}
	o.Handle(testNow, &falcon.Event{Kind: falcon.EvPush, RSN: 9, Data: b})
	return o.pipe.last()
}

// letter is a datagram of the peer.
func letter(op ib.Opcode, sn uint32, data string) []byte {
	h := headers(op, sn)
	h.RBTH.Solicited, h.Datagram, h.Imm.Data = true, ib.DETH{QKey: 7, SourceQP: 8}, 9
	return packet(h, []byte(data))
}

// TestEachSentDatagramIsOneNumberedPush: a datagram is one push that ends a message. Only one that the pipe takes gets
// a number.
func TestEachSentDatagramIsOneNumberedPush(t *testing.T) {
	o := newOffice(t, true)
	for _, c := range []struct {
		err    error // of the pipe
		d      transport.Datagram
		length int
		serial uint32
		counts transport.Counters
	}{
		{nil, transport.Datagram{Length: 5}, 28, 1, transport.Counters{PushesTx: 1, BytesTx: 5}},
		{falcon.ErrXoff, transport.Datagram{Length: 5}, 0, 2, transport.Counters{CreditWaits: 1}},
		{falcon.ErrClosed, transport.Datagram{Length: 5}, 0, 2, transport.Counters{}},
		{nil, transport.Datagram{Length: 8, HasImm: true}, 32, 2, transport.Counters{PushesTx: 1, BytesTx: 8}},
		{nil, transport.Datagram{}, 20, 3, transport.Counters{PushesTx: 1}},
	} {
		o.pipe.err, o.account.Counters, o.pipe.calls = c.err, transport.Counters{}, nil
		d := &datagram{Datagram: c.d}
		took := o.send(testNow, 77, d)
		var want []call
		if c.err == nil {
			want = []call{{what: "last push", tag: 77, length: c.length}}
		}
		if took != (c.err == nil) || d.Serial != c.serial || o.account.Counters != c.counts || !slices.Equal(o.pipe.calls, want) {
			t.Errorf("%v: taken %t, number %d, counted %+v, %+v", c.err, took, d.Serial, o.account.Counters, o.pipe.calls)
		}
	}
}

// TestDatagramsAreWrittenWholeAndPadded: the packet of a datagram, with a pad of zeros; it needs all of its room.
func TestDatagramsAreWrittenWholeAndPadded(t *testing.T) {
	o := newOffice(t, true)
	for _, c := range []struct {
		d    transport.Datagram
		data string
		want string
	}{
		{
			transport.Datagram{To: 0x11, From: 1, QKey: 0x80010000, Serial: 9, Solicited: true, Length: 3},
			"abc",
			"\x10\x00\x05\x64\x00\x00\x11\x00\x00\x00\x00\x09\x80\x01\x00\x00\x00\x00\x01\x00abc\x00",
		},
		{
			transport.Datagram{To: 0x11, From: 1, Imm: 0x04030201, HasImm: true, Length: 4},
			"abcd",
			"\x10\x00\x00\x65\x00\x00\x11\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01\x02\x03\x04abcd",
		},
		{transport.Datagram{}, "", "\x10\x00\x00\x64" + string(make([]byte, 16))},
	} {
		d := &datagram{Datagram: c.d}
		copy(d.data[:], c.data)
		o.hold(5, d)
		b := bytes.Repeat([]byte{0xee}, len(c.want)+1)
		n, err := o.Fill(falcon.TxnPush, 5, b)
		if err != nil || string(b[:n]) != c.want || b[len(c.want)] != 0xee {
			t.Errorf("%q, want %q: %v", b[:n], c.want, err)
		}
		if n, err := o.Fill(falcon.TxnPush, 5, b[:len(c.want)]); err != nil || n != len(c.want) {
			t.Errorf("into just its room: %d, %v", n, err)
		}
		if _, err := o.Fill(falcon.TxnPush, 5, b[:len(c.want)-1]); err == nil {
			t.Error("written into one byte less")
		}
		if _, err := o.Fill(falcon.TxnPush, 6, b); err == nil {
			t.Error("a datagram that is gone is written")
		}
		if _, err := o.Fill(falcon.TxnPull, 5, b); err == nil {
			t.Error("a datagram is written as a pull")
		}
	}
	o.link.queue = queue{}
	if o.link.Disconnected(testNow); o.pipe.closed() != 1 {
		t.Errorf("%+v", o.pipe.last())
	}
	if _, err := o.Fill(falcon.TxnPush, 5, make([]byte, 100)); err == nil {
		t.Error("a datagram is written when nobody has the connection")
	}
}

// hold makes a datagram the only one that the pipe has.
func (o *office) hold(number uint32, d *datagram) {
	o.link.queue = queue{held: make([]*datagram, LinkQueue), head: number, next: number + 1, tail: number + 1}
	*o.link.queue.place(number) = d
}

// TestOnlyValidDatagramsAreDelivered: which datagrams are delivered, lost, or refused as belonging to another
// connection.
func TestOnlyValidDatagramsAreDelivered(t *testing.T) {
	ack, nack := call{what: "ack", rsn: 9}, call{what: "nack", rsn: 9, code: falconwire.NackCID}
	d := transport.Datagram{To: testQPN, From: 8, QKey: 7, Solicited: true, Length: 3}
	imm := d
	imm.HasImm, imm.Imm = true, 9
	for name, c := range map[string]struct {
		b      []byte
		answer call
		want   []transport.Datagram
		counts transport.Counters
	}{
		"plain":            {letter(ib.UD|ib.SendOnly, 1, "abc"), ack, []transport.Datagram{d}, transport.Counters{}},
		"with immediate":   {letter(ib.UD|ib.SendOnlyImm, 1, "abc"), ack, []transport.Datagram{imm}, transport.Counters{}},
		"later":            {letter(ib.UD|ib.SendOnly, 5, "abc"), ack, []transport.Datagram{d}, transport.Counters{}},
		"of before":        {letter(ib.UD|ib.SendOnly, 0, "abc"), ack, nil, transport.Counters{DatagramsLost: 1}},
		"a SEND":           {letter(ib.SendOnly, 1, "abc"), nack, nil, transport.Counters{CIDMismatches: 1}},
		"reserved":         {letter(ib.UD|ib.SendOnlyImm+1, 1, "abc"), ack, nil, transport.Counters{DatagramsLost: 1}},
		"cut short":        {letter(ib.UD|ib.SendOnly, 1, "")[:16], ack, nil, transport.Counters{DatagramsLost: 1}},
		"not whole words":  {append(letter(ib.UD|ib.SendOnly, 1, "abc"), 0), ack, nil, transport.Counters{DatagramsLost: 1}},
		"SEND, cut short":  {letter(ib.SendOnly, 1, "")[:16], ack, nil, transport.Counters{DatagramsLost: 1}},
		"nothing, at last": {nil, ack, nil, transport.Counters{DatagramsLost: 1}},
	} {
		o := newOffice(t, true)
		got := o.arrives(c.b)
		var delivered []transport.Datagram
		came := o.e.delivered
		if came.Datagram != nil {
			delivered = append(delivered, *came.Datagram)
			c.counts.DatagramsLost++ // there is no such queue pair
		}
		if got != c.answer || !slices.Equal(delivered, c.want) || o.account.Counters != c.counts {
			t.Errorf("%s: %+v, delivered %+v, counted %+v", name, got, delivered, o.account.Counters)
		}
		if len(c.want) > 0 && (string(came.Data) != "abc" || came.ID != 9 || came.Conn != 5) {
			t.Errorf("%s: %q, packet %d of connection %d", name, came.Data, came.ID, came.Conn)
		}
	}
}

// TestOrderedConnectionsDropOldDatagrams: on an ordered connection numbers only rise, and wrap; on another they mean
// nothing.
func TestOrderedConnectionsDropOldDatagrams(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		o := newOffice(t, ordered)
		o.heard = ^uint32(0) - 1
		var got []bool
		for _, sn := range []uint32{^uint32(0) - 2, ^uint32(0) - 1, ^uint32(0) - 1, 2, 1, 2, 3} {
			o.arrives(letter(ib.UD|ib.SendOnly, sn, ""))
			got = append(got, o.e.delivered.Datagram != nil)
		}
		if want := []bool{!ordered, true, !ordered, true, !ordered, !ordered, true}; !slices.Equal(got, want) {
			t.Errorf("ordered %t: delivered %v, want %v", ordered, got, want)
		}
	}
}

// TestAFinishedDatagramLeavesTheQueue: a datagram that ends leaves the queue, and its completion code says whether
// the destination was heard of. Nothing but datagrams may come. When the connection ends, so does
// the link's.
func TestAFinishedDatagramLeavesTheQueue(t *testing.T) {
	for code, heard := range map[falcon.Completion]bool{
		falcon.CmplAck: true, falcon.CmplTargetNackCID: true, falcon.CmplTargetNackNRE: true, falcon.CmplLocalTO: false,
		falcon.CmplDeadConn:  false,
		falcon.CmplRemoteErr: true,
	} {
		o := newOffice(t, true)
		o.lines.post(o.link, 1, verbs.Taken)
		o.Handle(testNow+5, &falcon.Event{Kind: falcon.EvPushDone, Code: code})
		if got := o.link.queue.progress == testNow+5; got != heard || !o.link.queue.empty() {
			t.Errorf("%v: heard of %t", code, got)
		}
	}
	o := newOffice(t, true)
	o.pipe.err = falcon.ErrXoff
	o.lines.post(o.link, 1, verbs.Taken)
	o.pipe.err = nil
	if o.Handle(testNow, &falcon.Event{Kind: falcon.EvCredit}); len(o.pipe.sent()) != 1 {
		t.Error("not sent with credit")
	}
	o.Handle(testNow, &falcon.Event{Kind: falcon.EvPull, RSN: 4})
	if c := o.pipe.last(); c != (call{what: "nack", rsn: 4, code: falconwire.NackCID}) || o.account.CIDMismatches != 1 {
		t.Errorf("%+v, %+v", c, o.account.Counters)
	}
	for range 2 { // nobody has it any more
		o.Handle(testNow, &falcon.Event{Kind: falcon.EvClosed})
		o.Handle(testNow, &falcon.Event{Kind: falcon.EvCredit})
	}
	if o.link.Connected() || o.pipe.closed() != 0 || o.lines.lost() != 1 {
		t.Errorf("connected %t, closed %d times, %d lost", o.link.Connected(), o.pipe.closed(), o.lines.lost())
	}
}

// TestOnlySentDatagramsAreFound: only datagrams that falcon has are found by their number. One that
// waits is not, and neither is one that was given up, even if another has its slot by now.
func TestOnlySentDatagramsAreFound(t *testing.T) {
	head := ^uint32(0) - 2 // numbers wrap
	o := queue{held: make([]*datagram, LinkQueue), head: head, next: head + 5, tail: head + 9}
	for n := o.head; n != o.tail; n++ {
		*o.place(n) = &datagram{Datagram: transport.Datagram{Serial: n}}
	}
	for i := range uint32(3 * LinkQueue) {
		n := head - LinkQueue + i
		d, with := o.get(n), i >= LinkQueue && i < LinkQueue+5
		if (d != nil) != with || with && d.Serial != n {
			t.Errorf("number head%+d: found is %t, want %t", int32(n-head), d != nil, with)
		}
	}
	*o.place(head + 2) = nil
	if o.get(head+2) != nil {
		t.Error("one that is over is found")
	}
}

// TestDatagramsTooLongForTheConnectionAreLost: a datagram longer than the connection carries is lost, when it is sent, or when
// it has waited for the connection.
func TestDatagramsTooLongForTheConnectionAreLost(t *testing.T) {
	l := newLines(t)
	k, c := l.handle(1), newPipe(100)
	k.Want(l.now)
	for _, n := range []int{100, 101, 99, 4096} {
		if got := k.Send(l.now, write(new(sender), n)); got != verbs.Taken {
			t.Fatalf("%d bytes, that wait: %d", n, got)
		}
	}
	l.connect(k, c)
	if !slices.Equal(c.sent(), []uint64{0, 2}) || l.lost() != 2 || l.Held() != 2 {
		t.Errorf("sent %d, %d lost, %d held", c.sent(), l.lost(), l.Held())
	}
	a, b := k.Send(l.now, write(new(sender), 100)), k.Send(l.now, write(new(sender), 101))
	if a != verbs.Taken || b != verbs.Lost {
		t.Errorf("100 bytes: %d, 101 bytes: %d", a, b)
	}
	if !slices.Equal(c.sent(), []uint64{0, 2, 4}) || l.lost() != 2 { // who sends counts that
		t.Errorf("sent %d, %d lost", c.sent(), l.lost())
	}
}

// TestDatagramsWaitForCreditUntilTheQueueIsFull: datagrams wait while the connection has no credit, and leave their places in any
// order; a place is free again when it is the oldest.
func TestDatagramsWaitForCreditUntilTheQueueIsFull(t *testing.T) {
	l := newLines(t)
	k, c := l.open(1)
	l.post(k, 2, verbs.Taken)
	c.err = falcon.ErrXoff
	l.post(k, LinkQueue-2, verbs.Taken)
	from := l.post(k, 2, verbs.Full)
	if !slices.Equal(c.sent(), []uint64{0, 1}) || l.Held() != LinkQueue || from.waits != k || len(k.queue.blocked) != 1 {
		t.Fatalf("sent %d, %d held, %d wait", c.sent(), l.Held(), len(k.queue.blocked))
	}
	k.sent(l.now, 2, true) // it was never sent
	if l.Held() != LinkQueue || from.resumed != 1 {
		t.Errorf("%d held, resumed %d times", l.Held(), from.resumed)
	}
	k.sent(l.now, 1, true)
	if l.Held() != LinkQueue-1 {
		t.Errorf("%d held", l.Held())
	}
	l.post(k, 1, verbs.Full) // its place is not free before the one of 0
	k.sent(l.now, 0, true)
	k.sent(l.now, 0, true) // once is enough
	if l.Held() != LinkQueue-2 {
		t.Errorf("%d held", l.Held())
	}
	l.post(k, 2, verbs.Taken)
	l.post(k, 1, verbs.Full)
	c.err = nil
	l.event(k, falcon.Event{Kind: falcon.EvCredit})
	if n := len(c.sent()); n != LinkQueue+2 || c.sent()[n-1] != LinkQueue+1 {
		t.Errorf("%d sent, the last is %d", n, c.sent()[n-1])
	}
	for n := range uint32(LinkQueue + 2) {
		k.sent(l.now, n, true)
	}
	if l.Held() != 0 || k.holding.On() != nil || l.lost() != 0 {
		t.Errorf("%d held, %d lost", l.Held(), l.lost())
	}
}

// TestASilentDestinationLosesItsDatagrams: a sender waits for room until the destination has been silent for LinkStall.
// Then everything held is lost, and so is what is sent until the destination is heard of again.
func TestASilentDestinationLosesItsDatagrams(t *testing.T) {
	l := newLines(t)
	k, c := l.open(1)
	begun := l.now
	l.post(k, LinkQueue, verbs.Taken)
	l.until(begun + LinkStall/2)
	from := l.post(k, 1, verbs.Full)
	l.until(begun + LinkStall - 1)
	if from.resumed != 0 || l.Held() != LinkQueue {
		t.Fatalf("resumed %d times, %d held, before the end", from.resumed, l.Held())
	}
	l.until(begun + LinkStall)
	if from.resumed != 1 || l.Held() != 0 || l.lost() != LinkQueue {
		t.Fatalf("resumed %d times, %d held, %d lost, at the end", from.resumed, l.Held(), l.lost())
	}
	l.post(k, 3, verbs.Lost)
	k.sent(l.now, 5, false) // falcon gave up
	l.post(k, 1, verbs.Lost)
	k.sent(l.now, 6, true)
	l.post(k, 1, verbs.Taken)
	if len(c.sent()) != LinkQueue+1 || l.Held() != 1 {
		t.Errorf("%d sent, %d held", len(c.sent()), l.Held())
	}

	// Long silence before the queue is full is no reason to give up at once what is new.
	k, _ = l.open(2)
	l.until(l.now + 5*LinkStall)
	begun = l.now
	l.post(k, LinkQueue, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(begun + LinkStall - 1)
	if from.resumed != 0 {
		t.Error("given up early")
	}
	k.sent(l.now, 0, true) // heard of: the wait begins anew
	l.post(k, 1, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(l.now + LinkStall - 1)
	if from.resumed != 0 {
		t.Error("given up early, though it was heard of")
	}
	l.until(l.now + 1)
	if from.resumed != 1 {
		t.Error("not given up")
	}

	// A link without a connection is stalled for those that waited, until it has one.
	k = l.handle(3)
	l.post(k, LinkQueue, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(l.now + LinkStall)
	if from.resumed != 1 {
		t.Error("without a connection: not given up")
	}
	l.post(k, 1, verbs.Lost)
	l.connect(k, newPipe(1000))
	l.post(k, 1, verbs.Taken)
}

// TestUnconnectedLinksMakeRoomInAFullFunction: when a function holds the maximum of datagrams, links without a connection give
// theirs up at once. If all links have one, the sender waits for the link that has been silent
// longest.
func TestUnconnectedLinksMakeRoomInAFullFunction(t *testing.T) {
	l := newLines(t)
	var all []*Link
	for i := range FunctionQueue / LinkQueue {
		k := l.handle(i)
		if i < 2 {
			k.Want(l.now)
			l.connect(k, newPipe(1000))
		}
		l.until(l.now + 10)
		l.post(k, LinkQueue, verbs.Taken)
		all = append(all, k)
	}
	other, _ := l.open(100)
	all[0].sent(l.now, 127, true) // heard of; the oldest is still held
	l.post(all[0], 1, verbs.Full)
	l.post(other, 1, verbs.Taken)
	silent := all[1]
	from := l.post(other, 1, verbs.Full)
	if from.waits != silent || l.lost() != 0 || l.Held() != FunctionQueue {
		t.Fatalf("waits for %p, want %p; %d lost, %d held", from.waits, silent, l.lost(), l.Held())
	}
	l.until(silent.queue.progress + LinkStall)
	if from.resumed != 1 || l.lost() != LinkQueue || l.Held() != FunctionQueue-LinkQueue {
		t.Fatalf("resumed %d times, %d lost, %d held", from.resumed, l.lost(), l.Held())
	}
	l.post(other, LinkQueue-1, verbs.Taken)
	another, _ := l.open(101)
	l.post(another, 2, verbs.Taken) // the first of those without a connection makes room
	if !all[2].queue.empty() || l.lost() != 2*LinkQueue || all[3].queue.empty() {
		t.Errorf("%d lost, %d held", l.lost(), l.Held())
	}
	l.post(all[2], 1, verbs.Taken) // what was given up had no connection: the next may have one
}

// TestGRHsHoldCorrectIPHeaders compares the headers before datagrams with bytes made by hand: IPv6's, and IPv4's with
// its checksum behind 20 bytes of nothing. Their lengths are those of RoCEv2's packets, with the
// pad.
func TestGRHsHoldCorrectIPHeaders(t *testing.T) {
	v4 := func(a, b, c, d byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 14: c, 15: d} }
	for name, c := range map[string]struct {
		from, to [16]byte
		class    uint8
		hops     uint8
		n        int
		want     string
		sl       uint8
	}{
		"IPv6": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0x24, 9, 100,
			"62400000 0084 11 09 fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv6, to be padded": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0, 255, 101,
			"60000000 0088 11 ff fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv6, nothing": {
			[16]byte{0xfd, 15: 2},
			[16]byte{0xfd, 15: 3},
			0xff, 0, 0,
			"6ff00000 0020 11 00 fd000000000000000000000000000002 fd000000000000000000000000000003", abi.SLRoCEIPv6,
		},
		"IPv4": { // the example of RFC 1071's arithmetic: 4524+0098+4000+0911+0a00+0002+0a00+0003 = a2d2
			v4(10, 0, 0, 2), v4(10, 0, 0, 3), 0x24, 9, 97,
			strings.Repeat("00", 20) + "4524 0098 0000 4000 0911 5d2d 0a000002 0a000003", abi.SLRoCEIPv4,
		},
		"IPv4, a sum of ones": { // 4500+0034+4000+0011+7aba+0000+0000+0000 = ffff
			v4(0x7a, 0xba, 0, 0), v4(0, 0, 0, 0), 0, 0, 0,
			strings.Repeat("00", 20) + "4500 0034 0000 4000 0011 0000 7aba0000 00000000", abi.SLRoCEIPv4,
		},
		"IPv4, a carry of the carry": { // 4500+0034+4000+0011+7aba+ffff+0001+0000 = 1ffff, 10000, 1
			v4(0x7a, 0xba, 0xff, 0xff), v4(0, 1, 0, 0), 0, 0, 0,
			strings.Repeat("00", 20) + "4500 0034 0000 4000 0011 fffe 7abaffff 00010000", abi.SLRoCEIPv4,
		},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		l := &Link{to: LinkKey{GID: c.from, TrafficClass: c.class, HopLimit: c.hops}, own: c.to}
		var b [verbs.GRHSize]byte
		for i := range b {
			b[i] = 0xee // of the last datagram
		}
		if l.putGRH(&b, c.n); !bytes.Equal(b[:], want) || l.packetType() != c.sl {
			t.Errorf("%s: % x, want % x; packet type %d", name, b, want, l.packetType())
		}
	}
}

package rof

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// mail is an endpoint of datagrams that records its calls.
type mail struct {
	out       map[uint32]*transport.Datagram
	data      []byte
	sent      map[uint32]bool // whether somebody is there, by number
	delivered []transport.Datagram
	received  []string
	ids       []uint32

	unblocked, ended, settled int
}

func (m *mail) Outgoing(number uint32) (*transport.Datagram, []byte) { return m.out[number], m.data }
func (m *mail) Unblocked(falcon.Time)                                { m.unblocked++ }
func (m *mail) Ended(falcon.Time)                                    { m.ended++ }
func (m *mail) Settle(falcon.Time)                                   { m.settled++ }

func (m *mail) Sent(_ falcon.Time, number uint32, heard bool) {
	if m.sent == nil {
		m.sent = map[uint32]bool{}
	}
	m.sent[number] = heard
}

func (m *mail) Deliver(_ falcon.Time, d *transport.Datagram, data []byte, id uint32) {
	m.delivered, m.received, m.ids = append(m.delivered, *d), append(m.received, string(data)), append(m.ids, id)
}

// office is a connection for datagrams between an endpoint and a carrier of the test.
type office struct {
	*Datagrams
	carrier *notes
	mail    *mail
	account transport.Account
}

func newOffice(t testing.TB, ordered bool) *office {
	t.Helper()
	o := &office{
		carrier: &notes{cfg: falcon.ConnConfig{LocalCID: 5, Ordered: ordered, MTU: 1000}},
		mail:    &mail{out: map[uint32]*transport.Datagram{}},
	}
	o.Datagrams = New().Datagrams(o.carrier)
	if n := o.AttachDatagrams(o.mail, &o.account); n != 976 || o.ID() != 5 { // 24 bytes of headers
		t.Fatalf("%d bytes a datagram, connection %d", n, o.ID())
	}
	return o
}

// arrives delivers a packet of the peer, and returns the answer.
func (o *office) arrives(b []byte) call {
	o.Handle(testNow, &falcon.Event{Kind: falcon.EvPush, RSN: 9, Data: b})
	return o.carrier.last()
}

// letter is a datagram of the peer.
func letter(op wire.Opcode, sn uint32, data string) []byte {
	h := headers(op, sn)
	h.RBTH.Solicited, h.Datagram, h.Imm.Data = true, wire.DETH{QKey: 7, SourceQP: 8}, 9
	return packet(h, []byte(data))
}

// TestSendDatagrams: the calls of the carrier and the counters. Only a datagram that the carrier
// takes gets a number.
func TestSendDatagrams(t *testing.T) {
	o := newOffice(t, true)
	for _, c := range []struct {
		err    error // of the carrier
		want   error
		d      transport.Datagram
		length int
		serial uint32
		counts transport.Counters
	}{
		{nil, nil, transport.Datagram{Length: 5}, 28, 1, transport.Counters{PushesTx: 1, BytesTx: 5}},
		{falcon.ErrXoff, transport.ErrBlocked, transport.Datagram{Length: 5}, 0, 2, transport.Counters{CreditWaits: 1}},
		{falcon.ErrClosed, transport.ErrEnding, transport.Datagram{Length: 5}, 0, 2, transport.Counters{}},
		{nil, nil, transport.Datagram{Length: 8, HasImm: true}, 32, 2, transport.Counters{PushesTx: 1, BytesTx: 8}},
		{nil, nil, transport.Datagram{}, 20, 3, transport.Counters{PushesTx: 1}},
	} {
		o.carrier.err, o.account.Counters, o.carrier.calls = c.err, transport.Counters{}, nil
		err := o.Send(testNow, 77, &c.d)
		var want []call
		if c.err == nil {
			want = []call{{what: "last push", tag: 77, length: c.length}}
		}
		if !errors.Is(err, c.want) || c.d.Serial != c.serial || o.account.Counters != c.counts ||
			!slices.Equal(o.carrier.calls, want) {
			t.Errorf("%v: %v, number %d, counted %+v, %+v", c.err, err, c.d.Serial, o.account.Counters, o.carrier.calls)
		}
	}
}

// TestDatagramPackets: the packet of a datagram, with a pad of zeros; it needs all of its room.
func TestDatagramPackets(t *testing.T) {
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
		o.mail.out[5], o.mail.data = &c.d, []byte(c.data)
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
	if o.Close(testNow); o.carrier.last().what != "close" {
		t.Errorf("%+v", o.carrier.last())
	}
	if _, err := o.Fill(falcon.TxnPush, 5, make([]byte, 100)); err == nil {
		t.Error("a datagram is written when nobody has the connection")
	}
}

// TestDatagramsArrive: which datagrams are delivered, lost, or refused as belonging to another
// connection.
func TestDatagramsArrive(t *testing.T) {
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
		"plain":            {letter(wire.UDSendOnly, 1, "abc"), ack, []transport.Datagram{d}, transport.Counters{}},
		"with immediate":   {letter(wire.UDSendOnlyImm, 1, "abc"), ack, []transport.Datagram{imm}, transport.Counters{}},
		"later":            {letter(wire.UDSendOnly, 5, "abc"), ack, []transport.Datagram{d}, transport.Counters{}},
		"of before":        {letter(wire.UDSendOnly, 0, "abc"), ack, nil, transport.Counters{DatagramsLost: 1}},
		"a SEND":           {letter(wire.SendOnly, 1, "abc"), nack, nil, transport.Counters{CIDMismatches: 1}},
		"reserved":         {letter(wire.UDSendOnlyImm+1, 1, "abc"), ack, nil, transport.Counters{DatagramsLost: 1}},
		"cut short":        {letter(wire.UDSendOnly, 1, "")[:16], ack, nil, transport.Counters{DatagramsLost: 1}},
		"not whole words":  {append(letter(wire.UDSendOnly, 1, "abc"), 0), ack, nil, transport.Counters{DatagramsLost: 1}},
		"SEND, cut short":  {letter(wire.SendOnly, 1, "")[:16], ack, nil, transport.Counters{DatagramsLost: 1}},
		"nothing, at last": {nil, ack, nil, transport.Counters{DatagramsLost: 1}},
	} {
		o := newOffice(t, true)
		if got := o.arrives(c.b); got != c.answer || !slices.Equal(o.mail.delivered, c.want) ||
			o.account.Counters != c.counts || o.mail.settled != 1 {
			t.Errorf("%s: %+v, delivered %+v, counted %+v, settled %d", name, got, o.mail.delivered, o.account.Counters,
				o.mail.settled)
		}
		if len(c.want) > 0 && (o.mail.received[0] != "abc" || o.mail.ids[0] != 9) {
			t.Errorf("%s: %q, called %d", name, o.mail.received[0], o.mail.ids[0])
		}
	}
}

// TestDatagramOrder: on an ordered connection numbers only rise, and wrap; on another they mean
// nothing.
func TestDatagramOrder(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		o := newOffice(t, ordered)
		o.heard = ^uint32(0) - 1
		var got []bool
		for _, sn := range []uint32{^uint32(0) - 2, ^uint32(0) - 1, ^uint32(0) - 1, 2, 1, 2, 3} {
			n := len(o.mail.delivered)
			o.arrives(letter(wire.UDSendOnly, sn, ""))
			got = append(got, len(o.mail.delivered) > n)
		}
		if want := []bool{!ordered, true, !ordered, true, !ordered, !ordered, true}; !slices.Equal(got, want) {
			t.Errorf("ordered %t: delivered %v, want %v", ordered, got, want)
		}
	}
}

// TestDatagramEvents: which calls the endpoint gets for the events of its carrier, and whether
// heard is set when a datagram ends, by its completion code.
func TestDatagramEvents(t *testing.T) {
	o := newOffice(t, true)
	for code, heard := range map[falcon.Completion]bool{
		falcon.CmplAck: true, falcon.CmplTargetNackCID: true, falcon.CmplTargetNackNRE: true, falcon.CmplLocalTO: false,
		falcon.CmplDeadConn:  false,
		falcon.CmplRemoteErr: true,
	} {
		o.Handle(testNow, &falcon.Event{Kind: falcon.EvPushDone, Tag: uint64(code), Code: code})
		if o.mail.sent[uint32(code)] != heard {
			t.Errorf("%v: somebody is there: %t", code, !heard)
		}
	}
	if len(o.mail.sent) != 6 || o.mail.settled != 6 {
		t.Errorf("%d are over, settled %d", len(o.mail.sent), o.mail.settled)
	}
	o.Handle(testNow, &falcon.Event{Kind: falcon.EvCredit})
	o.Handle(testNow, &falcon.Event{Kind: falcon.EvPull, RSN: 4})
	if c := o.carrier.last(); c != (call{what: "nack", rsn: 4, code: falconwire.NackCID}) ||
		o.account.CIDMismatches != 1 || o.mail.unblocked != 1 || o.mail.settled != 7 {
		t.Errorf("%+v, %+v, %+v", c, o.account.Counters, o.mail)
	}
	for range 2 { // nobody has it any more
		o.Handle(testNow, &falcon.Event{Kind: falcon.EvClosed})
		o.Handle(testNow, &falcon.Event{Kind: falcon.EvCredit})
	}
	if o.mail.ended != 1 || o.mail.unblocked != 1 || o.mail.settled != 8 {
		t.Errorf("%+v", o.mail)
	}
}

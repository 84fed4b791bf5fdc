package rof

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Datagrams is a connection that carries the datagrams between two functions. One queue pair may
// use many such connections, and the reverse (RDMA over Falcon §6.6.3). A datagram is one push.
type Datagrams struct {
	e       *Engine
	carrier Carrier
	user    transport.DatagramEndpoint // nil: the user has closed it
	account *transport.Account
	sn      uint32 // RBTH sequence number of the next datagram sent
	heard   uint32 // least RBTH sequence number of the next datagram received
}

var (
	_ transport.DatagramConn = (*Datagrams)(nil)
	_ User                   = (*Datagrams)(nil)
)

// Datagrams makes a connection for datagrams over carrier.
func (e *Engine) Datagrams(carrier Carrier) *Datagrams {
	d := &Datagrams{e: e, carrier: carrier, sn: 1, heard: 1}
	carrier.SetUser(d)
	return d
}

// AttachDatagrams implements transport.DatagramConn.
func (c *Datagrams) AttachDatagrams(u transport.DatagramEndpoint, a *transport.Account) (segment int) {
	c.user, c.account = u, a
	return c.carrier.Config().MTU - wire.UDSendOnlyImm.HeaderLen()
}

// ID implements transport.DatagramConn. It returns the connection identifier of this end.
func (c *Datagrams) ID() uint32 { return c.carrier.Config().LocalCID }

// Close implements transport.DatagramConn.
func (c *Datagrams) Close(now falcon.Time) {
	c.user = nil
	c.carrier.Close(now)
}

// Send implements transport.DatagramConn.
func (c *Datagrams) Send(now falcon.Time, number uint32, d *transport.Datagram) error {
	d.Serial = c.sn
	err := c.carrier.PushLast(now, uint64(number), wire.PushLength(datagramOpcode(d), d.Length))
	switch {
	case errors.Is(err, falcon.ErrXoff):
		c.account.CreditWaits++
		return transport.ErrBlocked
	case err != nil:
		return transport.ErrEnding
	}
	c.sn++
	c.account.PushesTx++
	c.account.BytesTx += uint64(d.Length)
	return nil
}

func datagramOpcode(d *transport.Datagram) wire.Opcode {
	if d.HasImm {
		return wire.UDSendOnlyImm
	}
	return wire.UDSendOnly
}

// Handle handles one event of the carrier.
func (c *Datagrams) Handle(now falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPull { // no datagram: RDMA over Falcon §6.9
		c.account.CIDMismatches++
		c.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	u := c.user
	if u == nil {
		return
	}
	switch ev.Kind {
	case falcon.EvPushDone:
		u.Sent(now, uint32(ev.Tag), ev.Code != falcon.CmplLocalTO && ev.Code != falcon.CmplDeadConn)
	case falcon.EvPush:
		c.receive(now, ev)
	case falcon.EvCredit:
		u.Unblocked(now)
	case falcon.EvClosed:
		c.user = nil
		u.Ended(now)
	}
	u.Settle(now)
}

// receive handles a received datagram. A datagram that cannot be delivered is dropped without
// telling the sender or the receiver (InfiniBand §9.8.3). Only the counters show it.
func (c *Datagrams) receive(now falcon.Time, ev *falcon.Event) {
	h := &c.e.headers
	n, err := h.Parse(ev.Data)
	if op := h.RBTH.Opcode; err == nil && op != wire.UDSendOnly && op != wire.UDSendOnlyImm {
		c.account.CIDMismatches++ // RDMA over Falcon §6.9: this connection belongs to no connected queue pair
		c.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	c.carrier.AckPush(now, ev.RSN)
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !c.inOrder(h.RBTH.SN) {
		c.account.DatagramsLost++
		return
	}
	d := &c.e.datagram
	*d = transport.Datagram{
		To: h.RBTH.DestQP, From: h.Datagram.SourceQP, QKey: h.Datagram.QKey, Imm: h.Imm.Data,
		HasImm: h.RBTH.Opcode == wire.UDSendOnlyImm, Solicited: h.RBTH.Solicited, Length: len(data),
	}
	c.user.Deliver(now, d, data, ev.RSN)
}

// inOrder checks the sequence number of a datagram (RDMA over Falcon §8.2). On an ordered
// connection the numbers only rise. A number is missing if the sender gave its datagram up.
func (c *Datagrams) inOrder(sn uint32) bool {
	if !c.carrier.Config().Ordered {
		return true
	}
	if int32(sn-c.heard) < 0 {
		return false
	}
	c.heard = sn + 1
	return true
}

// Fill writes the packet of a datagram; see Conn.Fill.
func (c *Datagrams) Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	if c.user == nil || kind != falcon.TxnPush {
		return 0, errGone
	}
	d, data := c.user.Outgoing(uint32(tag))
	if d == nil || len(dst) < wire.PushLength(datagramOpcode(d), d.Length) {
		return 0, errGone
	}
	if c.account.Trace != nil {
		c.noteFilled(d)
	}
	h := &c.e.headers
	*h = wire.Headers{
		RBTH: wire.RBTH{
			Opcode: datagramOpcode(d), DestQP: d.To, SN: d.Serial, Pad: uint8(wire.PadLen(d.Length)), Solicited: d.Solicited,
		},
		Datagram: wire.DETH{QKey: d.QKey, SourceQP: d.From},
	}
	h.Imm.Data = d.Imm
	n := len(h.Append(dst[:0]))
	n += copy(dst[n:], data)
	pad := wire.PadLen(d.Length)
	clear(dst[n : n+pad])
	return n + pad, nil
}

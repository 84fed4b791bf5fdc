package roce

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// Timers of a connection.
const (
	kindRetry timer.Kind = iota
	kindAnswer
	kindParting
	kindPace
)

// end holds what both halves of a connection need to know of this end.
type end struct {
	e       *shared // of the engine
	port    *Port
	conn    *Conn // that this end belongs to, for lists and timers
	way     wire.Way
	closed  bool
	segment int // data bytes of every packet but the last of a message
	service wire.Opcode
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has detached
	account *transport.Account
	place   list.Node[Conn] // in Port.line: has something to send
	failing list.Node[Conn] // in shared.failing: the data to send could not be read
}

// arm arms a timer.
func (x *end) arm(h *timer.Handle, kind timer.Kind, at transport.Time) {
	x.e.timers.Arm(h, x.conn, kind, at)
}

// stop stops a timer.
func (x *end) stop(h *timer.Handle) { x.e.timers.Stop(h) }

// settle ends a group of calls to the queue pair, if it is still attached.
func (x *end) settle(now transport.Time) {
	if x.user != nil {
		x.user.Settle(now)
	}
}

// wake queues the connection for sending.
func (x *end) wake() {
	if !x.closed {
		x.port.line.PushBack(&x.place, x.conn)
		x.port.enter()
	}
}

// traced reports whether the queue pair's requests are traced. There must be a ring.
func (x *end) traced() bool { return x.account.Trace.Wants(x.terms.QPN) }

// begin sets the engine's headers to what all packets of the connection have in common.
func (x *end) begin(op wire.Opcode, psn wire.PSN) *wire.Headers {
	h := &x.e.out
	*h = wire.Headers{BTH: wire.BTH{Opcode: op | x.service, Migrated: true, PKey: wire.DefaultPKey, DestQP: x.terms.Peer, PSN: psn}}
	return h
}

// dataAt returns the offset in b at which a packet's data begins.
func (x *end) dataAt(op wire.Opcode) int { return x.way.HeaderLen() + (op | x.service).HeaderLen() }

// finish completes a packet whose n data bytes are already in b, and returns its length.
func (x *end) finish(h *wire.Headers, b []byte, n int) int {
	at, ip := x.dataAt(h.BTH.Opcode), x.way.HeaderLen()
	pad := falcon.PadLen(n)
	h.BTH.Pad = uint8(pad)
	h.Append(b[ip:ip])
	end := at + n + pad
	clear(b[at+n : end])
	x.way.Put(b[:end+wire.ICRCLen])
	return end + wire.ICRCLen
}

// MaxOverhead is the maximum length of a packet without its data.
const MaxOverhead = wire.MaxOverhead + wire.MaxHeaderLen

// overhead returns the maximum length of a packet with data, without the data.
func overhead(w *wire.Way) int {
	return w.HeaderLen() + wire.MaxDataHeaderLen + wire.ICRCLen
}

package tcp_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// queuePair is a queue pair whose memory is a slice.
type queuePair struct {
	transport.Requester // of what it does not need
	transport.Responder
	conn     *iwarp.Conn
	memory   []byte // the peer's to write and to read
	own      []byte // data of requests
	got      []byte // of SENDs
	statuses []abi.WCStatus
	ended    string
}

const anyKey = 0x1234ab00

func (q *queuePair) attach(t *testing.T, c *iwarp.Conn) {
	t.Helper()
	terms := transport.Terms{Endpoint: q, QPN: 1, PathMTU: 4096, Serves: 16, Reads: 16, Account: new(transport.Account)}
	if _, ok := c.Attach(&terms); !ok {
		t.Fatal("not attached")
	}
	q.conn = c
}

func (q *queuePair) Gather(_ *transport.Request, offset uint32, dst []byte) error {
	copy(dst, q.own[offset:])
	return nil
}

func (q *queuePair) Scatter(_ *transport.Request, offset uint32, src []byte) error {
	copy(q.own[offset:], src)
	return nil
}

func (q *queuePair) Element(_ *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	return uint64(offset), 1, uint32(len(q.own)) - offset
}

func (q *queuePair) Done(_ transport.Time, r *transport.Request, st abi.WCStatus, _ uint32) {
	if r.Issued && r.Pending == 0 || st != abi.WCSuccess {
		q.statuses = append(q.statuses, st)
	}
}

func (q *queuePair) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	if p.Sends() {
		q.got = append(q.got, data...)
	} else {
		copy(q.memory[p.Addr:], data)
	}
	return transport.Verdict{}
}

func (q *queuePair) Read(_ uint32, addr uint64, _ uint32) (transport.Memory, transport.Refusal) {
	return &readable{q.memory[addr:]}, transport.Accepted
}

func (q *queuePair) Complete(transport.Time, *transport.Packet, uint64, abi.WCStatus) {}
func (q *queuePair) Serving() bool                                                    { return true }
func (q *queuePair) Heard()                                                           {}
func (q *queuePair) AnswerAt(now transport.Time) transport.Time                       { return now }
func (q *queuePair) Answered(int)                                                     {}
func (q *queuePair) Settle(transport.Time)                                            {}
func (q *queuePair) Unblocked(transport.Time)                                         {}
func (q *queuePair) Ended(_ transport.Time, _ abi.WCStatus, why string)               { q.ended = why }

type readable struct{ b []byte }

func (m *readable) Read(offset uint64, dst []byte) error {
	copy(dst, m.b[offset:])
	return nil
}

// carrier moves the bytes of one side's iWARP connections over TCP, as a shard would.
type carrier struct {
	t      *testing.T
	stack  *tcp.Stack
	engine *iwarp.Engine
	qp     *queuePair
	w      *world
	asked  string // private data of the peer
	conns  []*iwarp.Conn
	gone   bool
	why    string
	frame  [64 << 10]byte
}

func (x *carrier) step() {
	now := x.w.time
	x.stack.Step(now)
	for ev, ok := x.stack.Next(); ok; ev, ok = x.stack.Next() {
		c, _ := ev.Conn.Owner.(*iwarp.Conn)
		switch ev.Kind {
		case tcp.Connected:
			c = x.engine.Connect(now, ev.Conn.MSS, &iwarp.Settings{CRC: true, IRD: 16, ORD: 16, Private: []byte("a question")})
			x.own(c, ev.Conn)
		case tcp.Incoming:
			x.own(x.engine.Answer(now, ev.Conn.MSS), ev.Conn)
		case tcp.Data:
			ev.Conn.Take(c.Receive(now, ev.Conn.In()))
		case tcp.Acknowledged:
			c.Acknowledged(now, ev.Conn.Acknowledged())
		case tcp.PeerClosed:
			c.PeerClosed(now)
		case tcp.Lost:
			c.Lost(now, ev.Why)
		}
	}
	x.engine.Run(now)
	for c, what, ok := x.engine.Next(); ok; c, what, ok = x.engine.Next() {
		stream := c.Owner.(*tcp.Conn)
		switch what {
		case iwarp.Requested:
			x.asked = string(c.Peer().Private)
			c.Accept(now, &iwarp.Settings{CRC: true, IRD: 16, ORD: 16, Private: []byte("an answer")})
			x.qp.attach(x.t, c)
		case iwarp.Established:
			x.asked = string(c.Peer().Private)
			x.qp.attach(x.t, c)
		case iwarp.Finish:
			stream.CloseWrite()
		case iwarp.Gone:
			why, reset := c.Ending()
			if x.gone, x.why = true, why; reset {
				stream.Reset()
			} else {
				stream.Close()
			}
		}
	}
	for _, c := range x.conns {
		stream := c.Owner.(*tcp.Conn)
		if in := stream.In(); len(in) > 0 { // what was left before the queue pair was attached
			stream.Take(c.Receive(now, in))
		}
		c.Room(stream.Room())
	}
	for n, c := x.engine.Transmit(now, x.frame[:]); n > 0; n, c = x.engine.Transmit(now, x.frame[:]) {
		if wrote := c.Owner.(*tcp.Conn).Write(x.frame[:n]); wrote != n {
			x.t.Errorf("%d of %d bytes were written", wrote, n)
		}
	}
	x.stack.Flush()
}

func (x *carrier) own(c *iwarp.Conn, stream *tcp.Conn) {
	c.Owner, stream.Owner = stream, c
	x.conns = append(x.conns, c)
}

// request carries a request out.
func (x *carrier) request(w *world, step func(), wqe abi.SendWQE, n int) {
	x.t.Helper()
	before := len(x.qp.statuses)
	r := &transport.Request{WQE: wqe, Length: uint32(n)}
	for len(x.qp.statuses) == before {
		for !r.Issued {
			if _, err := x.qp.conn.Issue(w.time, r); err != nil {
				break
			}
		}
		step()
		if x.qp.ended != "" || time.Now().After(w.failed) {
			x.t.Fatalf("%s of %d bytes: %q", wqe.Opcode, n, x.qp.ended)
		}
	}
	if st := x.qp.statuses[before]; st != abi.WCSuccess {
		x.t.Fatal(wqe.Opcode, st)
	}
}

// TestIWARPRunsOnTheseStreams: two engines of iWARP agree on a connection with private data, WRITE,
// SEND and READ each other's memory byte for byte, and close, over TCP on networks that lose and
// reorder packets.
func TestIWARPRunsOnTheseStreams(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s, seed %d", family(v6), seed), func(t *testing.T) {
				w := newWorld(t, seed, v6, tcp.Limits{})
				w.loss, w.swap = 0.01*float64(seed), 0.02*float64(seed)
				const size = 300_000
				var ends [2]*carrier
				for i := range ends {
					ends[i] = &carrier{
						t: t, stack: w.sides[i].Stack, engine: iwarp.New(), w: w,
						qp: &queuePair{memory: make([]byte, size), own: bytesOf(uint64(i), size)},
					}
				}
				step := func() {
					w.time += turnTime
					for i, x := range ends {
						x.step()
						w.carryAll(i)
						for _, late := range w.sides[i].held {
							w.sides[1-i].Take(7, late)
						}
						w.sides[i].held = nil
					}
				}
				until := func(what string, done func() bool) {
					t.Helper()
					for !done() {
						if step(); time.Now().After(w.failed) {
							t.Fatal("it does not come: ", what)
						}
					}
				}
				a, b := ends[0], ends[1]
				b.stack.Listen(7, 5000)
				a.stack.Connect(7, 0, netip.AddrPortFrom(addresses[v6][1], 5000))
				until("a connection", func() bool { return a.qp.conn != nil && b.qp.conn != nil })
				if a.asked != "an answer" || b.asked != "a question" {
					t.Errorf("private data %q, %q", a.asked, b.asked)
				}
				want := bytes.Clone(a.qp.own)
				a.request(w, step, abi.SendWQE{Opcode: abi.OpWrite, RKey: anyKey}, size)
				a.request(w, step, abi.SendWQE{Opcode: abi.OpSend}, 5000)
				until("the bytes", func() bool { return len(b.qp.got) == 5000 })
				if !bytes.Equal(b.qp.memory, want) || !bytes.Equal(b.qp.got, want[:5000]) {
					t.Error("other bytes were written or sent")
				}
				b.qp.memory = bytesOf(99, size)
				a.request(w, step, abi.SendWQE{Opcode: abi.OpRead, RKey: anyKey}, size)
				if !bytes.Equal(a.qp.own, b.qp.memory) {
					t.Error("other bytes were read")
				}
				a.qp.conn.Close(w.time)
				until("the end", func() bool { return a.gone && b.gone && b.qp.ended != "" })
			})
		}
	}
}

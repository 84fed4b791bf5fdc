package iwarp

import (
	"math/rand/v2"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Name is the wire's name for operators.
const Name = "iwarp"

// traced is the wire's number in traces. Packets are FPDUs, counted in each direction.
var traced = trace.AddWire(&trace.Wire{Name: Name, Opcode: func(op uint8) string { return wire.Opcode(op).String() }})

// Engine is the iWARP transport of one shard.
type Engine struct {
	line    list.List[Conn] // has something to send, and perhaps room for it
	failing list.List[Conn] // ends for a reason of its own that Run tells the peer
	events  ring.Queue[event]
	timers  timer.Wheel[*Conn]
	buffers buffers
	random  *rand.ChaCha8
	tape    *tape.Tape
	stats   Stats

	// Scratch memory of one call.
	packet transport.Packet
	atomic transport.Atomic
	word   [8]byte
	ulpdu  [wire.MaxULPDU]byte // of an FPDU with markers that is being made
}

var _ transport.Streams = (*Engine)(nil)

// Stats counts what an engine's connections sent and received.
type Stats struct {
	Conns      int    // connections that are not gone
	Buffered   int    // bytes of memory that hold the beginnings of FPDUs
	Received   uint64 // FPDUs
	Sent       uint64 // FPDUs
	Refused    uint64 // streams that were ended by a Terminate sent
	Terminated uint64 // streams that were ended by a Terminate received
	Wrong      uint64 // streams that were not iWARP's, or corrupted
}

// New makes an engine without connections.
func New() *Engine { return &Engine{random: rand.NewChaCha8([32]byte{})} }

// UseRandom sets where the STags of READs come from. Nobody else may know seed.
func (e *Engine) UseRandom(seed [32]byte) { e.random = rand.NewChaCha8(seed) }

// Stats returns the engine's counters.
func (e *Engine) Stats() Stats { return e.stats }

// Event is something that the owner of a stream must know.
type Event = transport.StreamEvent

// Events of connections.
const (
	Requested   = transport.StreamRequested
	Established = transport.StreamEstablished
	Rejected    = transport.StreamRejected
	Finish      = transport.StreamFinish
	Gone        = transport.StreamGone
)

type event struct {
	conn *Conn
	what Event
}

// Next returns the next event, in the order in which they happened; ok is false if there is none.
func (e *Engine) Next() (c *Conn, what Event, ok bool) {
	if e.events.Len() == 0 {
		return nil, 0, false
	}
	x := e.events.Pop()
	c, what = x.conn, x.what
	x.conn = nil
	return c, what, true
}

func (e *Engine) tell(c *Conn, what Event) { *e.events.Push() = event{c, what} }

// Transmit writes the next frame or FPDU into b and returns its length and whose stream it belongs
// to; 0 if there is none now. b has room for 64 KiB, or at least for the largest MSS of the streams.
// The connections take turns.
func (e *Engine) Transmit(now transport.Time, b []byte) (n int, c *Conn) {
	for c = e.line.First(); c != nil; c = e.line.First() {
		n = c.transmit(now, b)
		if c.place.Remove(); n > 0 {
			c.wake()
			return n, c
		}
	}
	return 0, nil
}

// Waiting reports whether Transmit may have something.
func (e *Engine) Waiting() bool { return !e.line.Empty() }

// Run implements transport.Driven.
func (e *Engine) Run(now transport.Time) (more bool) {
	for c, kind, ok := e.timers.Expire(now); ok; c, kind, ok = e.timers.Expire(now) {
		c.due(now, kind)
	}
	for c := e.failing.First(); c != nil; c = e.failing.First() {
		c.failing.Remove()
		c.fail(now)
	}
	return e.Ready()
}

// Ready implements transport.Driven. What is to be sent does not count, it is left to Transmit.
func (e *Engine) Ready() bool { return !e.failing.Empty() }

// Deadline implements transport.Driven.
func (e *Engine) Deadline() transport.Time { return e.timers.Deadline() }

// CreditsChanged implements transport.Wire: there are no credits.
func (e *Engine) CreditsChanged() {}

// sizes are the sizes of buffers: for FPDUs that fit into usual frames, and for the longest.
var sizes = [...]int{2 << 10, 10 << 10, (wire.FPDUHeaderLen+wire.MaxULPDU+3)&^3 + wire.CRCLen}

// buffers are unused buffers of each size.
type buffers [len(sizes)][][]byte

// take returns an empty buffer with room for n bytes, at most the last of sizes.
func (e *Engine) take(n int) []byte {
	class := 0
	for n > sizes[class] {
		class++
	}
	e.stats.Buffered += sizes[class]
	free := &e.buffers[class]
	if len(*free) == 0 {
		return make([]byte, 0, sizes[class])
	}
	b := (*free)[len(*free)-1]
	*free = (*free)[:len(*free)-1]
	return b
}

// give returns a buffer that take returned.
func (e *Engine) give(b []byte) {
	for class, size := range sizes {
		if cap(b) == size {
			e.stats.Buffered -= size
			e.buffers[class] = append(e.buffers[class], b[:0])
		}
	}
}

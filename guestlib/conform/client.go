package conform

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// clientMemory is what one stream makes visible to the device, in bytes.
const clientMemory = 16 << 20

// features the kit knows.
const features = abi.FeatureEventIndex | abi.FeatureExtendedVerbs | abi.FeatureDatagrams | abi.FeatureArmWord | abi.FeatureFunctionEvents |
	abi.FeatureVFCommands | abi.FeatureVectors

// client is a stream to the device, spoken by hand.
type client struct {
	t        *T
	conn     net.Conn
	pool     *arena.Pool
	features uint64 // in use
	number   uint32 // of the function
	tag      uint64

	admin adminQueue

	mu   sync.Mutex
	got  []message      // not yet looked for
	end  error          // of the reader
	left bool           // said goodbye
	seen func(*message) // called by the reader with each message, before anybody else has it
}

// message is what the device sent. Of a CQ event there is one for each number.
type message struct {
	abi.MsgHeader
	body []byte
	cqn  uint32
}

func newClient(t *T, conn net.Conn, src arena.Source) *client {
	c := &client{t: t, conn: conn, pool: arena.NewPool(src)}
	go c.read()
	return c
}

// read is the reader goroutine: it always reads (DRV-205).
func (c *client) read() {
	buf := make([]byte, abi.MaxMessage)
	for {
		h, body, err := abi.ReadMessage(c.conn, buf)
		c.mu.Lock()
		switch {
		case err != nil:
			c.end = err
		case h.Type == abi.MsgCQEvent:
			for b := body; len(b) >= 4; b = b[4:] {
				c.add(message{h, nil, binary.LittleEndian.Uint32(b)})
			}
		default:
			c.add(message{h, append([]byte(nil), body...), 0})
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *client) add(m message) {
	if c.seen != nil {
		c.seen(&m)
	}
	c.got = append(c.got, m)
}

// onMessage has f see each message as it comes.
func (c *client) onMessage(f func(*message)) {
	c.mu.Lock()
	c.seen = f
	c.mu.Unlock()
}

// take removes the first message that fits.
func (c *client) take(fits func(*message) bool) (m message, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.got {
		if fits(&c.got[i]) {
			m = c.got[i]
			c.got = append(c.got[:i], c.got[i+1:]...)
			return m, true
		}
	}
	return m, false
}

// ended reports whether the device closed the stream.
func (c *client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end != nil
}

// wait returns the first message that fits, those that came before included.
func (c *client) wait(what string, fits func(*message) bool) (m message) {
	c.t.until(func() (ok bool) {
		over := c.ended() // before looking: what came before the end counts
		if m, ok = c.take(fits); !ok && over {
			c.t.Fatalf("the device closed the stream, want %s", what)
		}
		return ok
	}, "%s", what)
	return m
}

// none makes sure that no such message comes for a moment.
func (c *client) none(what string, fits func(*message) bool) {
	c.t.never(func() bool { _, ok := c.take(fits); return ok }, "the device sent %s", what)
}

// closed waits until the device closed the stream.
func (c *client) closed() { c.t.until(c.ended, "the end of the stream") }

// raw sends bytes. That the device has closed the stream is for the reader to find.
func (c *client) raw(b []byte) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.t.cfg.Wait))
	_, _ = c.conn.Write(b)
}

// send sends a message with a new tag.
func (c *client) send(m abi.Message) (tag uint64) {
	c.tag++
	c.raw(abi.AppendStruct(nil, c.tag, m))
	return c.tag
}

// reply waits for the answer to a tag.
func (c *client) reply(tag uint64, what string) message {
	return c.wait(what, func(m *message) bool {
		return m.Tag == tag && m.Type != abi.MsgCQEvent && m.Type != abi.MsgAsyncEvent && m.Type != abi.MsgError
	})
}

// answer sends a message and decodes the answer.
func (c *client) answer(q, a abi.Message) {
	m := c.reply(c.send(q), a.MsgType().String())
	if m.Type != a.MsgType() {
		c.t.Fatalf("%s is answered by %s", q.MsgType(), m.Type)
	}
	c.t.ok(abi.Decode(m.body, a))
}

// hello sends a hello and returns the answer.
func (c *client) hello(h abi.Hello) (r abi.HelloReply) {
	abi.PutText(h.Driver[:], "vnic conform")
	c.answer(&h, &r)
	c.features, c.number = r.Features, r.Function
	return r
}

// attach is dial and a hello that must be accepted.
func (t *T) attach() *client { return t.attachWith(features) }

func (t *T) attachWith(features uint64) *client {
	c := t.dial()
	r := c.hello(abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: t.function, Features: features})
	if r.Status != abi.StatusOK {
		t.Fatalf("hello: %s", r.Status)
	}
	return c
}

// ready is attach and enable.
func (t *T) ready() *client {
	c := t.attach()
	c.enable()
	return c
}

func (t *T) readyWith(features uint64) *client {
	c := t.attachWith(features)
	c.enable()
	return c
}

func (c *client) goodbye() {
	c.left = true
	c.raw(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
	c.closed()
}

// leave ends the stream, whatever became of it. Without the device's word memory may still be in
// use, but the client is gone then anyway.
func (c *client) leave() {
	if !c.ended() && !c.left {
		c.raw(abi.AppendMessage(nil, abi.MsgGoodbye, 0, nil))
		for end := time.Now().Add(c.t.cfg.Wait); !c.ended() && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
	}
	c.conn.Close()
	for !c.ended() { // the reader is over
		time.Sleep(100 * time.Microsecond)
	}
}

// readStatus reads a register.
func (c *client) readStatus(offset, width uint32) (uint64, abi.Status) {
	var r abi.RegReply
	c.answer(&abi.RegRead{Offset: offset, Width: width}, &r)
	return r.Value, r.Status
}

// register reads a register that is there.
func (c *client) register(offset uint32) uint64 {
	v, st := c.readStatus(offset, abi.LookupRegister(offset).Width)
	if st != abi.StatusOK {
		c.t.Fatalf("read of %s: %s", abi.LookupRegister(offset).Name, st)
	}
	return v
}

func (c *client) state() abi.State { return abi.State(c.register(abi.RegState)) }

func (c *client) writeStatus(offset, width uint32, v uint64) abi.Status {
	var r abi.RegReply
	c.answer(&abi.RegWrite{Offset: offset, Width: width, Value: v}, &r)
	return r.Status
}

// set writes a register, which must succeed.
func (c *client) set(offset uint32, v uint64) {
	r := abi.LookupRegister(offset)
	if st := c.writeStatus(offset, r.Width, v); st != abi.StatusOK {
		c.t.Fatalf("write of %#x to %s: %s", v, r.Name, st)
	}
}

// control writes RegControl and returns the status.
func (c *client) control(v abi.Control) abi.Status {
	return c.writeStatus(abi.RegControl, 4, uint64(v))
}

// ring sends doorbell records in one message.
func (c *client) ring(records ...abi.Doorbell) {
	body := make([]byte, len(records)*abi.DoorbellSize)
	for i := range records {
		records[i].Marshal(body[i*abi.DoorbellSize:])
	}
	c.raw(abi.AppendMessage(nil, abi.MsgDoorbell, 0, body))
}

// event waits for an asynchronous event.
func (c *client) event(typ abi.EventType) (e abi.AsyncEvent) {
	m := c.wait(typ.String(), isEvent(typ))
	c.t.ok(abi.Decode(m.body, &e))
	if m.Tag != 0 {
		c.t.Fatalf("%s with tag %d, want 0", typ, m.Tag)
	}
	return e
}

func isEvent(typ abi.EventType) func(*message) bool {
	return func(m *message) bool {
		return m.Type == abi.MsgAsyncEvent && len(m.body) >= 2 && abi.EventType(binary.LittleEndian.Uint16(m.body)) == typ
	}
}

// anyEvent matches every asynchronous event.
func anyEvent(m *message) bool { return m.Type == abi.MsgAsyncEvent }

// isCQEvent matches an event of a completion queue.
func isCQEvent(cqn uint32) func(*message) bool {
	return func(m *message) bool { return m.Type == abi.MsgCQEvent && m.cqn == cqn }
}

// alloc returns zeroed memory of whole pages that the device sees.
func (c *client) alloc(n int) *arena.Block {
	b, err := c.pool.Alloc(n)
	c.t.ok(err)
	return b
}

// pages returns a page list of a block.
func (c *client) pages(b *arena.Block) *arena.PageList {
	l, err := c.pool.NewPageList(b.Pages())
	c.t.ok(err)
	return l
}

// mem is a block as a ring sees it.
func mem(b *arena.Block) ring.Mem { return ring.Mem(b.Bytes()) }

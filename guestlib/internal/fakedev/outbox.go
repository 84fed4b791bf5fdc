package fakedev

import (
	"encoding/binary"
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Outbox is what goes to a client, in order. Nobody waits for the client to take it.
type Outbox struct {
	conn *net.UnixConn

	mu   sync.Mutex
	out  []byte
	hold bool   // a command is carried out: what it sends waits for its completion
	held []byte // that waits
	late int    // events that the client has not taken

	wake chan struct{}
	gone chan struct{} // closed when the session is over: the last is written, and conn closed
}

// Raw sends bytes as they are.
func (o *Outbox) Raw(b []byte) {
	o.mu.Lock()
	if o.hold {
		o.held = append(o.held, b...)
	} else {
		o.out = append(o.out, b...)
	}
	o.mu.Unlock()
	o.poke()
}

// during holds back what is sent until done, or lets it go.
func (o *Outbox) during(command bool) {
	o.mu.Lock()
	o.hold = command
	if !command {
		o.out, o.held = append(o.out, o.held...), nil
	}
	o.mu.Unlock()
	o.poke()
}

// Send sends a message.
func (o *Outbox) Send(tag uint64, m abi.Message) {
	if _, is := m.(*abi.AsyncEvent); is {
		o.mu.Lock()
		o.late++
		o.mu.Unlock()
	}
	o.Raw(abi.AppendStruct(nil, tag, m))
}

// behind reports whether the client has n events to take: with 256 it gets no connections
// (DEV-211).
func (o *Outbox) behind(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.late >= n
}

// Fail sends MsgError. The caller closes the stream.
func (o *Outbox) Fail(code abi.Status, reason string) {
	m := abi.ErrorMsg{Code: code}
	copy(m.Reason[:], reason)
	o.Send(0, &m)
}

// CQEvent sends an event for the completion queues cqns.
func (o *Outbox) CQEvent(cqns ...uint32) {
	var b []byte
	for _, n := range cqns {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	o.Raw(abi.AppendMessage(nil, abi.MsgCQEvent, 0, b))
}

func (o *Outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// write is the writer goroutine.
func (o *Outbox) write() {
	for last := false; !last; {
		select {
		case <-o.wake:
		case <-o.gone:
			last = true
		}
		o.mu.Lock()
		out, late := o.out, o.late
		o.out = nil
		o.mu.Unlock()
		if len(out) > 0 {
			if _, err := o.conn.Write(out); err != nil {
				return
			}
			o.mu.Lock()
			o.late -= late
			o.mu.Unlock()
		}
	}
	o.conn.Close()
}

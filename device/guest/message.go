package guest

import (
	"errors"
	"fmt"
	"io"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Asker receives the requests in a driver's messages. Its methods return false when the session is
// over.
type Asker interface {
	// Put takes a request. It waits for room.
	Put(r Request) bool
	// Heartbeat takes a heartbeat, which is to be echoed.
	Heartbeat(tag uint64, m *abi.Heartbeat) bool
}

// Parse reads a driver's messages until the stream ends. The error says how the driver broke the
// rules, or that one of its messages made this code panic, which ends this session only; nil means
// that the driver left. With strict, harmless errors are reported too.
func Parse(in io.Reader, to Asker, strict bool) (err error) {
	buf := make([]byte, abi.MaxMessage)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("fault in the program, please report it: %v, message %x", p, buf[:64])
		}
	}()
	for {
		h, body, err := abi.ReadMessage(in, buf)
		switch {
		case err == nil:
		case errors.Is(err, abi.ErrMessageTooLong), errors.Is(err, abi.ErrMessageTooShort):
			return Broken(abi.DRV201, headerBytes(&h), err)
		case errors.Is(err, ring.ErrIndex): // of a control block
			return Broken(abi.DRV206, nil, err)
		default:
			return nil // the guest is gone, perhaps in the middle of a message
		}
		if h.Type == abi.MsgGoodbye {
			return nil
		}
		if ok, err := message(&h, body, to, strict); !ok || err != nil {
			return err
		}
	}
}

// headerBytes returns a message's header in the form in which it came.
func headerBytes(h *abi.MsgHeader) []byte {
	b := make([]byte, abi.MsgHeaderSize)
	h.Marshal(b)
	return b
}

// message passes one message on. It returns false when the session is over.
func message(h *abi.MsgHeader, body []byte, to Asker, strict bool) (ok bool, err error) {
	if h.Flags != 0 && strict {
		dirty := [abi.DoorbellSize]byte(headerBytes(h))
		if !to.Put(Request{Kind: ReservedBits, Dirty: &dirty}) {
			return false, nil
		}
	}
	switch h.Type {
	case abi.MsgDoorbell:
		if len(body) == 0 || len(body)%abi.DoorbellSize != 0 {
			return false, Broken(abi.DRV206, headerBytes(h), fmt.Errorf("doorbell message of %d bytes is not a list of %d-byte records", len(body), abi.DoorbellSize))
		}
		return doorbells(body, to, strict), nil
	case abi.MsgRegRead:
		var m abi.RegRead
		if err := abi.Decode(body, &m); err != nil {
			return false, Broken(abi.DRV201, headerBytes(h), err)
		}
		return to.Put(Request{Kind: RegRead, Tag: h.Tag, Offset: m.Offset, Width: m.Width}), nil
	case abi.MsgRegWrite:
		var m abi.RegWrite
		if err := abi.Decode(body, &m); err != nil {
			return false, Broken(abi.DRV201, headerBytes(h), err)
		}
		return to.Put(Request{Kind: RegWrite, Tag: h.Tag, Offset: m.Offset, Width: m.Width, Value: m.Value}), nil
	case abi.MsgHeartbeat:
		var m abi.Heartbeat
		if err := abi.Decode(body, &m); err != nil {
			return false, Broken(abi.DRV201, headerBytes(h), err)
		}
		return to.Heartbeat(h.Tag, &m), nil
	}
	clause := abi.DRV206
	if h.Type == abi.MsgHello {
		clause = abi.DRV202
	}
	return false, Broken(clause, headerBytes(h), fmt.Errorf("message type %d is not for a driver to send", uint16(h.Type)))
}

// doorbells passes doorbell records on. It returns false when the session is over.
func doorbells(records []byte, to Asker, strict bool) bool {
	for ; len(records) > 0; records = records[abi.DoorbellSize:] {
		r := Request{Kind: Ring}
		r.Doorbell.Unmarshal(records)
		if strict {
			r.Dirty = DirtyDoorbell(records[:abi.DoorbellSize])
		}
		if !to.Put(r) {
			return false
		}
	}
	return true
}

// RequestKind is the kind of a Request.
type RequestKind uint8

// Kinds of requests.
const (
	Ring RequestKind = iota
	RegRead
	RegWrite
	ReservedBits // strict only: a message whose header has reserved bytes that are not zero
)

// Request is one request of a driver to its function.
type Request struct {
	Kind     RequestKind
	Doorbell abi.Doorbell
	Tag      uint64
	Offset   uint32
	Width    uint32
	Value    uint64
	Dirty    *[abi.DoorbellSize]byte // strict only: the record or header, if its reserved bytes are not zero
}

// DirtyDoorbell returns the bytes of a record whose reserved bytes are not zero, else nil.
func DirtyDoorbell(record []byte) *[abi.DoorbellSize]byte {
	if !(*abi.Doorbell)(nil).Reserved(record) {
		return nil
	}
	raw := [abi.DoorbellSize]byte(record)
	return &raw
}

// mergeWindow is how many waiting requests a doorbell is compared with to find an older ring of the
// same queue.
const mergeWindow = 16

// mergeDoorbell merges the last waiting request, if it is a doorbell, into an older ring of the same
// queue: only the newest index matters. It does not look past a request of another kind, since the
// order against register writes is kept.
func mergeDoorbell(waiting []Request) bool {
	last := len(waiting) - 1
	r := &waiting[last]
	if r.Kind != Ring || r.Dirty != nil {
		return false
	}
	for i := last - 1; i >= max(0, last-mergeWindow); i-- {
		old := &waiting[i]
		if old.Kind != Ring {
			return false
		}
		if d := &old.Doorbell; d.Kind == r.Doorbell.Kind && d.Queue == r.Doorbell.Queue && d.Flags == r.Doorbell.Flags {
			d.Index = r.Doorbell.Index
			return true
		}
	}
	return false
}

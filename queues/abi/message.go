package abi

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// Message is a message body of fixed layout.
type Message interface {
	MsgType() MsgType
	Size() int
	Marshal(b []byte)
	Unmarshal(b []byte)
}

// Errors of the control stream's framing. After any of them the stream is out of step and must be
// closed.
var (
	// ErrMessageTooLong means that a header announces more than MaxMessage.
	ErrMessageTooLong = errors.New("abi: control message longer than MaxMessage")
	// ErrMessageTooShort means that a message is shorter than its header or than its body's layout.
	ErrMessageTooShort = errors.New("abi: control message too short")
)

// AppendMessage appends one framed message to b and returns the grown slice.
// It does not allocate when b has room for MsgHeaderSize+len(body) bytes. A
// body longer than MaxMessage-MsgHeaderSize is a programming error and
// panics.
func AppendMessage(b []byte, t MsgType, tag uint64, body []byte) []byte {
	b = appendHeader(b, t, tag, len(body))
	return append(b, body...)
}

// AppendStruct appends m as one framed message to b and returns the grown
// slice.
func AppendStruct(b []byte, tag uint64, m Message) []byte {
	b = appendHeader(b, m.MsgType(), tag, m.Size())
	at := len(b)
	b = slices.Grow(b, m.Size())[:at+m.Size()]
	m.Marshal(b[at:])
	return b
}

func appendHeader(b []byte, t MsgType, tag uint64, body int) []byte {
	if body > MaxMessage-MsgHeaderSize {
		panic(fmt.Sprintf("abi: %s body of %d bytes, limit %d", t, body, MaxMessage-MsgHeaderSize))
	}
	h := MsgHeader{Length: uint32(MsgHeaderSize + body), Type: t, Tag: tag}
	at := len(b)
	b = slices.Grow(b, MsgHeaderSize)[:at+MsgHeaderSize]
	h.Marshal(b[at:])
	return b
}

// ReadMessage reads one message from r into buf, which must hold MaxMessage
// bytes. The body is a part of buf: it is valid until the next call with buf.
// The error is io.EOF when the stream ends between messages,
// io.ErrUnexpectedEOF when it ends inside one, wraps ErrMessageTooLong or
// ErrMessageTooShort when the length is out of range, or is the reader's own.
// It reads no byte beyond the message and does not allocate.
func ReadMessage(r io.Reader, buf []byte) (h MsgHeader, body []byte, err error) {
	if _, err = io.ReadFull(r, buf[:MsgHeaderSize]); err != nil {
		return h, nil, err
	}
	h.Unmarshal(buf)
	switch {
	case h.Length < MsgHeaderSize:
		return h, nil, fmt.Errorf("%w: length %d", ErrMessageTooShort, h.Length)
	case h.Length > MaxMessage:
		return h, nil, fmt.Errorf("%w: length %d", ErrMessageTooLong, h.Length)
	}
	body = buf[MsgHeaderSize:h.Length]
	if _, err = io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return h, nil, err
	}
	return h, body, nil
}

// Decode reads m from the body of a message, after checking that it is long
// enough. Extra bytes are allowed: a later minor version may add fields.
func Decode(body []byte, m Message) error {
	if len(body) < m.Size() {
		return fmt.Errorf("%w: %s body has %d of %d bytes", ErrMessageTooShort, m.MsgType(), len(body), m.Size())
	}
	m.Unmarshal(body)
	return nil
}

package cmlink

import (
	"encoding/binary"
	"fmt"
	"io"
)

// MaxMessage is the most bytes a message can have.
const MaxMessage = 64 << 10

// A frame is the length of the message in 32 bits, big-endian, and the message. A frame of length 0
// is a keepalive, not a message.
const frameHeader = 4

// readFrame reads one message, or nil for an empty frame.
func readFrame(r io.Reader) ([]byte, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(h[:])
	if n > MaxMessage {
		return nil, fmt.Errorf("frame of %d bytes, at most %d", n, MaxMessage)
	}
	if n == 0 {
		return nil, nil
	}
	msg := make([]byte, n)
	if _, err := io.ReadFull(r, msg); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return msg, nil
}

func appendFrame(b, msg []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(msg)))
	return append(b, msg...)
}

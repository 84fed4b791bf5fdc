package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Port is the vsock port on which a guest's agent listens.
const Port = 1022

// Kinds of frames.
const (
	kindRequest = 'r' // JSON
	kindStdin   = 'i' // empty: its end
	kindWindow  = 'w' // rows and columns of the terminal, 16 bits each
	kindStdout  = 'o'
	kindStderr  = 'e'
	kindExit    = 'x' // status, 32 bits
)

// maxFrame bounds the content of a frame, and headerSize is what is before it: kind and length.
const (
	maxFrame   = 32 << 10
	headerSize = 5
)

// request is what the host asks for. One of its first three fields is set.
type request struct {
	Command []string `json:"command,omitempty"`
	Get     string   `json:"get,omitempty"` // file or folder to send as an archive
	Put     string   `json:"put,omitempty"` // file or folder to make of an archive

	Terminal bool     `json:"terminal,omitempty"` // the command gets one
	Env      []string `json:"env,omitempty"`
	Rows     uint16   `json:"rows,omitempty"`
	Columns  uint16   `json:"columns,omitempty"`
}

// stream sends and receives frames. Several goroutines may send.
type stream struct {
	rw   io.ReadWriter
	mu   sync.Mutex
	head [headerSize]byte // of the frame received
}

func (s *stream) send(kind byte, content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := min(len(content), maxFrame)
		frame := binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
		if _, err := s.rw.Write(append(frame, content[:n]...)); err != nil {
			return err
		}
		if content = content[n:]; len(content) == 0 {
			return nil
		}
	}
}

func (s *stream) receive() (kind byte, content []byte, err error) {
	if _, err := io.ReadFull(s.rw, s.head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(s.head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, the limit is %d", n, maxFrame)
	}
	content = make([]byte, n)
	_, err = io.ReadFull(s.rw, content)
	return s.head[0], content, err
}

func (s *stream) sendRequest(r request) error {
	b, err := json.Marshal(r)
	if err == nil && len(b) > maxFrame {
		err = fmt.Errorf("a command of %d bytes, the limit is %d", len(b), maxFrame)
	}
	if err != nil {
		return err
	}
	return s.send(kindRequest, b)
}

// writer is the writing side of a kind of frames.
type writer struct {
	s    *stream
	kind byte
}

func (w writer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return len(p), w.s.send(w.kind, p)
}

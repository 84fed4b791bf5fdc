package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Protocol is the version of what supervisor and worker say to each other: a
// supervisor may be older than its worker.
const Protocol = 1

// Kinds of message.
const (
	kindStart  = "start"  // to the worker, the first: what it is
	kindGive   = "give"   // to the worker: descriptors by name
	kindGo     = "go"     // to the worker: that was all
	kindStream = "stream" // to the worker: a connection for the acceptor with that name
	kindGone   = "gone"   // to the worker: what it wanted dropped is
	kindStop   = "stop"   // to the worker: end in order
	kindJoined = "joined" // to the worker: the relay with that name has told it what its front end said; without one: all have
	kindKeep   = "keep"   // to the supervisor: descriptors for the next worker, by name
	kindDrop   = "drop"   // to the supervisor: the next worker needs those not
	kindReady  = "ready"  // to the supervisor
	kindAgain  = "again"  // to the supervisor: the acceptor with that name begins anew

	kindUpgrade = "upgrade" // to the worker: what became of one that was asked for
	kindFailed  = "failed"  // to the supervisor: why the worker ends
)

// message is a 32-bit length and so much JSON, with descriptors beside it.
type message struct {
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
	Start *Start `json:"start,omitempty"`

	Upgrade *Upgrade `json:"upgrade,omitempty"`
}

// Start is what a worker is told of itself.
type Start struct {
	Protocol   int       `json:"protocol"`
	Generation int       `json:"generation"` // counts the workers, from 1
	PID        int       `json:"pid"`        // of the supervisor
	Since      time.Time `json:"since"`      // when the supervisor began
	Upgrade    Upgrade   `json:"upgrade"`
	Stuck      int       `json:"stuck"` // workers replaced because their event loop was stuck
	// Joins says that a message tells when all relays have told the worker what they know. A
	// supervisor of before there was one does not say, and one of before relays joined one by one
	// tells it of all at once.
	Joins bool `json:"joins,omitempty"`
}

const (
	maxMessage = 64 << 10
	// maxFDs is how many descriptors go with one message.
	maxFDs = 64
	// sendLimit bounds how long the other side may leave a message unread.
	sendLimit = 10 * time.Second
)

// channel is one end of the socketpair. One goroutine reads; any may write.
type channel struct {
	conn *net.UnixConn
	mu   sync.Mutex // for writing
}

func newChannel(f *os.File) (*channel, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("descriptor is a %s, want a unix socket", c.LocalAddr().Network()), c.Close())
	}
	return &channel{conn: conn}, nil
}

// pair makes two ends, the second for another process.
func pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "worker")
	c, err := newChannel(os.NewFile(uintptr(fds[0]), "supervisor"))
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c.conn, theirs, nil
}

// send writes a message with copies of fds, which stay the caller's.
func (c *channel) send(m message, fds ...int) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendLimit))
	n, _, err := c.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.conn.Write(b[n:])
	}
	if err != nil {
		return fmt.Errorf("message %s %s: %w", m.Kind, m.Name, err)
	}
	return nil
}

// receive reads a message. The descriptors with it are the caller's.
func (c *channel) receive() (m message, fds []int, err error) {
	var list fdpass.FDs
	defer func() {
		if err != nil {
			list.Close()
		}
	}()
	var size [4]byte
	if err := list.ReadFull(c.conn, size[:], maxFDs); err != nil {
		return m, nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxMessage {
		return m, nil, fmt.Errorf("message of %d bytes, the limit is %d", n, maxMessage)
	}
	body := make([]byte, n)
	if err := list.ReadFull(c.conn, body, maxFDs); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m, nil, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, nil, fmt.Errorf("message: %w", err)
	}
	for list.Len() > 0 {
		fds = append(fds, list.Take())
	}
	return m, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

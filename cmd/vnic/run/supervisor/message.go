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

// Protocol is the version of the protocol between supervisor and worker. A supervisor may be older
// than its worker.
const Protocol = 1

// Kinds of message.
const (
	kindStart  = "start"  // to the worker, first message: a Start
	kindGive   = "give"   // to the worker: named descriptors
	kindGo     = "go"     // to the worker: all descriptors were given
	kindStream = "stream" // to the worker: a connection for the named acceptor
	kindGone   = "gone"   // to the worker: the descriptors of a drop are closed
	kindStop   = "stop"   // to the worker: shut down
	kindJoined = "joined" // to the worker: the named relay has sent its front end's state; without a name: all relays have
	kindKeep   = "keep"   // to the supervisor: named descriptors for the next worker
	kindDrop   = "drop"   // to the supervisor: close the named descriptors
	kindReady  = "ready"  // to the supervisor: the worker serves
	kindAgain  = "again"  // to the supervisor: connect to the named acceptor again

	kindReplace = "replace" // to the supervisor: end this worker and start the next

	kindUpgrade  = "upgrade"  // to the worker: the result of an upgrade
	kindFailed   = "failed"   // to the supervisor: why the worker ends
	kindReload   = "reload"   // to the supervisor: read the configuration again; to the worker: take this one
	kindReloaded = "reloaded" // to the supervisor: why the worker has not taken it, or ""; to the worker: the result of a reload
)

// message is sent as a 32-bit length and JSON of that length, with descriptors attached.
type message struct {
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
	Start *Start `json:"start,omitempty"`

	// Number is that of a reload. In a kindReload to the supervisor it is that of the worker's request, and in a
	// kindReloaded to the worker that of the last request which it answers.
	Number int `json:"number,omitempty"`

	Upgrade *Upgrade `json:"upgrade,omitempty"`
	Reload  *Reload  `json:"reload,omitempty"`
}

// Start tells a worker about itself and its supervisor.
type Start struct {
	Protocol   int       `json:"protocol"`
	Generation int       `json:"generation"` // number of the worker, from 1
	PID        int       `json:"pid"`        // of the supervisor
	Since      time.Time `json:"since"`      // when the supervisor started
	Upgrade    Upgrade   `json:"upgrade"`
	Stuck      int       `json:"stuck"` // number of workers replaced because their event loop was stuck
	// Joins says that the supervisor sends kindJoined. Older supervisors do not set it; somewhat
	// newer ones send kindJoined once for all relays, not for each one.
	Joins bool `json:"joins,omitempty"`
	// Reloads says that the supervisor knows kindReload, and takes SIGUSR2 for an upgrade. Older ones
	// do not set it, and take SIGHUP for that.
	Reloads bool   `json:"reloads,omitempty"`
	Reload  Reload `json:"reload"`
	// Numbers says that the supervisor tells which requests the result of a reload answers. Older ones do not set it.
	Numbers bool `json:"numbers,omitempty"`
	// Replaces says that the supervisor knows kindReplace. Older ones do not set it.
	Replaces bool `json:"replaces,omitempty"`
}

const (
	maxMessage = 64 << 10
	// maxFDs is the largest number of descriptors of a message.
	maxFDs = 64
	// sendLimit is the time limit for sending a message to a peer that does not read.
	sendLimit = 10 * time.Second
)

// channel is one end of the socketpair. One goroutine reads; any goroutine may write.
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

// pair returns the two ends of a new socketpair, the second for another process.
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

// send writes a message with copies of fds. The caller keeps ownership of fds.
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

// receive reads a message. The caller owns its descriptors.
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

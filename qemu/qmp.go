package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"
)

// QMP is a client of QEMU's machine protocol: JSON objects on a stream (QEMU
// docs/interop/qmp-spec). Its methods may be called from several goroutines.
type QMP struct {
	conn   net.Conn
	events chan Event
	done   chan struct{} // closed when the stream has ended

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan reply
	err     error
}

// Event is an asynchronous event from QEMU.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *QMPError       `json:"error"`
}

// QMPError is QEMU's error response to a command.
type QMPError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *QMPError) Error() string { return fmt.Sprintf("%s (%s)", e.Desc, e.Class) }

// maxEvents is the number of events that are queued for the reader; further ones are dropped.
const maxEvents = 64

// NewQMP waits for QEMU's greeting on conn and enters command mode. It owns conn, also when it
// fails.
func NewQMP(ctx context.Context, conn net.Conn) (*QMP, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	dec := json.NewDecoder(conn)
	var greeting struct {
		QMP *struct{} `json:"QMP"`
	}
	if err := dec.Decode(&greeting); err != nil {
		return nil, errors.Join(fmt.Errorf("qmp greeting: %w", err), conn.Close())
	}
	if greeting.QMP == nil {
		return nil, errors.Join(errors.New("qmp: the stream does not start with a greeting; is this QEMU's control monitor?"), conn.Close())
	}
	q := &QMP{conn: conn, events: make(chan Event, maxEvents), done: make(chan struct{}), waiting: make(map[uint64]chan reply)}
	go q.read(dec)
	if err := q.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// Execute runs a command and stores its result in result unless that is nil.
func (q *QMP) Execute(ctx context.Context, command string, args, result any) error {
	ch := make(chan reply, 1)
	q.mu.Lock()
	if q.err != nil {
		defer q.mu.Unlock()
		return fmt.Errorf("qmp %s: %w", command, q.err)
	}
	q.next++
	id := q.next
	q.waiting[id] = ch
	b, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, id})
	if err == nil {
		_, err = q.conn.Write(append(b, '\n'))
	}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.waiting, id)
		q.mu.Unlock()
	}()
	if err != nil {
		return fmt.Errorf("qmp %s: %w", command, err)
	}
	var r reply
	select {
	case r = <-ch:
	case <-q.done:
		select {
		case r = <-ch: // the reply arrived before the stream ended
		default:
			return fmt.Errorf("qmp %s: %w", command, q.failure())
		}
	case <-ctx.Done():
		return fmt.Errorf("qmp %s: %w", command, ctx.Err())
	}
	if r.Error != nil {
		return fmt.Errorf("qmp %s: %w", command, r.Error)
	}
	if result != nil {
		return json.Unmarshal(r.Return, result)
	}
	return nil
}

// Events returns the channel of QEMU's events. It is closed when the stream ends.
func (q *QMP) Events() <-chan Event { return q.events }

// Close closes the connection.
func (q *QMP) Close() error {
	err := q.conn.Close()
	<-q.done
	return err
}

func (q *QMP) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

func (q *QMP) read(dec *json.Decoder) {
	defer close(q.done)
	defer close(q.events)
	for {
		var m struct {
			reply
			Event
			ID uint64 `json:"id"`
		}
		if err := dec.Decode(&m); err != nil {
			q.mu.Lock()
			q.err = err
			q.mu.Unlock()
			return
		}
		if m.Name != "" {
			select {
			case q.events <- m.Event:
			default:
			}
			continue
		}
		q.mu.Lock()
		if ch := q.waiting[m.ID]; ch != nil {
			ch <- m.reply
			delete(q.waiting, m.ID)
		}
		q.mu.Unlock()
	}
}

// DialQMP connects to the monitor of a QEMU that was started with CommandLine.Monitor. QEMU serves
// one client of the monitor at a time.
func DialQMP(ctx context.Context, path string) (*QMP, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: the guest does not run, or was started without this monitor (vnic qemu gives it one)", err)
	case err != nil:
		return nil, err
	}
	q, err := NewQMP(ctx, conn)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: QEMU does not answer: another client may have its monitor: %w", path, ctx.Err())
	}
	return q, err
}

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// ChannelFD is the worker's descriptor of its channel to the supervisor.
const ChannelFD = 3

// Worker is the supervisor as its worker sees it.
type Worker struct {
	Start
	// Pulses are where the worker's threads show that they turn. A supervisor of before there
	// were pulses gives none: then nobody looks at them.
	Pulses *Pulses
	ch     *channel

	mu        sync.Mutex
	given     map[string][]int
	acceptors map[string]*Acceptor
	before    map[string]bool          // acceptors that were closed
	dropping  map[string]chan struct{} // closed when the supervisor has
	joined    map[string]chan struct{} // by relay, closed when it has told what it knows
	all       bool                     // all have
	stop      chan struct{}            // closed when the worker is to end
}

// Join receives what the supervisor gives to a worker. It consumes the channel.
func Join(channelFD *os.File) (*Worker, error) {
	ch, err := newChannel(channelFD)
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w; vnic run starts its workers itself", err)
	}
	w := &Worker{ch: ch, Pulses: &Pulses{}, given: map[string][]int{}, acceptors: map[string]*Acceptor{}, before: map[string]bool{}, dropping: map[string]chan struct{}{}, joined: map[string]chan struct{}{}, stop: make(chan struct{})}
	if err := w.join(); err != nil {
		for _, fds := range w.given {
			closeAll(fds)
		}
		return nil, errors.Join(fmt.Errorf("supervisor: %w", err), ch.conn.Close())
	}
	w.all = !w.Joins
	go w.listen()
	return w, nil
}

func (w *Worker) join() error {
	for {
		m, fds, err := w.ch.receive()
		if err != nil {
			return err
		}
		switch {
		case m.Kind == kindStart && m.Start != nil:
			if m.Start.Protocol != Protocol {
				return fmt.Errorf("it speaks version %d, this program %d: stop and start vnic run to upgrade it", m.Start.Protocol, Protocol)
			}
			w.Start = *m.Start
		case m.Kind == kindGive && m.Name == givenPulse && len(fds) == 1:
			if w.Pulses, err = mapPulses(fds[0]); err != nil {
				closeAll(fds)
				return err
			}
		case m.Kind == kindGive:
			closeAll(w.given[m.Name])
			w.given[m.Name], fds = fds, nil
		case m.Kind == kindGo:
			closeAll(fds)
			if w.Protocol == 0 {
				return errors.New("no start message")
			}
			return nil
		}
		closeAll(fds)
	}
}

// listen follows the supervisor to its end or the worker's.
func (w *Worker) listen() {
	defer close(w.stop)
	for {
		m, fds, err := w.ch.receive()
		if err != nil || m.Kind == kindStop {
			closeAll(fds)
			return
		}
		if m.Kind == kindGone {
			w.mu.Lock()
			if c := w.dropping[m.Name]; c != nil {
				close(c)
				delete(w.dropping, m.Name)
			}
			w.mu.Unlock()
		}
		if m.Kind == kindJoined {
			w.heard(m.Name)
		}
		if m.Kind == kindUpgrade && m.Upgrade != nil {
			w.mu.Lock()
			w.Start.Upgrade = *m.Upgrade
			w.mu.Unlock()
		}
		if m.Kind == kindStream && len(fds) == 1 {
			w.Acceptor(m.Name).put(fds[0])
			continue
		}
		closeAll(fds)
	}
}

// Context is done when the supervisor wants the worker to end, or is gone.
func (w *Worker) Context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-w.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Joined is closed when the relay with a name has told the worker what it knows of its front end, or
// all that there were at the start have.
func (w *Worker) Joined(name string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.joined[name]
	if c == nil {
		c = make(chan struct{})
		w.joined[name] = c
		if w.all {
			close(c)
		}
	}
	return c
}

// heard notes that a relay has joined; "": all have.
func (w *Worker) heard(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = w.all || name == ""
	if name != "" && w.joined[name] == nil {
		w.joined[name] = make(chan struct{})
	}
	for of, c := range w.joined {
		if of != name && name != "" {
			continue
		}
		select {
		case <-c:
		default:
			close(c)
		}
	}
}

// Take returns the descriptors given under a name, nil if there are none. They
// are the caller's.
func (w *Worker) Take(name string) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fds := w.given[name]
	delete(w.given, name)
	return fds
}

// Names lists what was given under names that begin with a prefix and was not
// taken.
func (w *Worker) Names(prefix string) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.given {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Discard closes what nobody took. What a worker before kept of that is not kept
// any longer; so a worker discards when it has all it needs, and not before it fails.
func (w *Worker) Discard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, fds := range w.given {
		closeAll(fds)
		_ = w.ch.send(message{Kind: kindDrop, Name: name}) // fails only when the supervisor is gone
	}
	clear(w.given)
}

// Keep gives the supervisor copies of descriptors for the next worker.
func (w *Worker) Keep(name string, fds ...int) error {
	return w.ch.send(message{Kind: kindKeep, Name: name}, fds...)
}

// Drop has the supervisor close what was kept under a name, and waits for it.
func (w *Worker) Drop(name string) error {
	w.mu.Lock()
	c := w.dropping[name]
	if c == nil {
		c = make(chan struct{})
		w.dropping[name] = c
	}
	w.mu.Unlock()
	if err := w.ch.send(message{Kind: kindDrop, Name: name}); err != nil {
		return err
	}
	select {
	case <-c:
		return nil
	case <-w.stop:
		return nil // everything goes, or the next worker discards it
	case <-time.After(sendLimit):
		return fmt.Errorf("%s: the supervisor does not answer", name)
	}
}

// Ready says that the worker serves.
func (w *Worker) Ready() error { return w.ch.send(message{Kind: kindReady}) }

// Failed tells why the worker ends.
func (w *Worker) Failed(why error) {
	_ = w.ch.send(message{Kind: kindFailed, Name: bounded(why.Error())}) // fails only when the supervisor is gone
}

// maxReason bounds what is told of a failure; JSON may need six bytes for one.
const maxReason = 8 << 10

// Upgraded says what became of the upgrades that were asked for so far.
func (w *Worker) Upgraded() Upgrade {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Start.Upgrade
}

// Acceptor hands out the connections that come under a name.
func (w *Worker) Acceptor(name string) *Acceptor {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.acceptors[name]
	if a == nil {
		a = &Acceptor{conns: make(chan *net.UnixConn, maxStreams), done: make(chan struct{})}
		a.ended = func() { w.forget(name, a) }
		w.acceptors[name] = a
		if w.before[name] { // what came to the one before is gone
			_ = w.ch.send(message{Kind: kindAgain, Name: name})
		}
	}
	return a
}

// forget makes room for another acceptor of a name.
func (w *Worker) forget(name string, a *Acceptor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acceptors[name] == a {
		delete(w.acceptors, name)
		w.before[name] = true
	}
}

// maxStreams is how many connections wait for one acceptor.
const maxStreams = 16

// Acceptor is where a worker's connections come from; see qemu.Acceptor.
type Acceptor struct {
	conns chan *net.UnixConn
	once  sync.Once
	done  chan struct{}
	ended func()
}

// put hands on a connection, and closes it if nobody wants it.
func (a *Acceptor) put(fd int) {
	c, err := newChannel(os.NewFile(uintptr(fd), "stream"))
	if err != nil {
		return
	}
	select {
	case a.conns <- c.conn:
	default:
		c.conn.Close()
	}
}

// AcceptUnix returns the next connection, net.ErrClosed after Close.
func (a *Acceptor) AcceptUnix() (*net.UnixConn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

// Close ends it.
func (a *Acceptor) Close() error {
	a.once.Do(func() {
		close(a.done)
		a.ended()
		for {
			select {
			case c := <-a.conns:
				c.Close()
				continue
			default:
			}
			return
		}
	})
	return nil
}

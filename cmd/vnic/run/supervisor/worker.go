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

// Worker is a worker's connection to its supervisor.
type Worker struct {
	Start
	// Pulses show that the worker's threads make progress. An older supervisor gives none; then
	// nobody reads them.
	Pulses *Pulses
	ch     *channel

	mu        sync.Mutex
	given     map[string][]int
	acceptors map[string]*Acceptor
	before    map[string]bool          // names of acceptors that were closed
	dropping  map[string]chan struct{} // by name, closed when the supervisor has dropped it
	joined    map[string]chan struct{} // by relay, closed when it has sent its state
	all       bool                     // all relays have sent their state
	stop      chan struct{}            // closed when the worker has to end

	apply    func(text *os.File) error // takes over another configuration
	requests int                       // for reloads, so far
	waiting  map[int]chan error        // by number of the request, for its answer; capacity 1
}

// Join receives everything that the supervisor sends to a new worker. It owns channelFD.
func Join(channelFD *os.File) (*Worker, error) {
	ch, err := newChannel(channelFD)
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w; vnic run starts its workers itself", err)
	}
	w := &Worker{ch: ch, Pulses: &Pulses{}, given: map[string][]int{}, acceptors: map[string]*Acceptor{}, before: map[string]bool{}, dropping: map[string]chan struct{}{}, joined: map[string]chan struct{}{}, stop: make(chan struct{}), waiting: map[int]chan error{}}
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
				return fmt.Errorf("it speaks version %d, and this program version %d: stop and start vnic run to upgrade it", m.Start.Protocol, Protocol)
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

// listen handles the supervisor's messages until the supervisor or the worker ends.
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
			w.markJoined(m.Name)
		}
		if m.Kind == kindUpgrade && m.Upgrade != nil {
			w.mu.Lock()
			w.Start.Upgrade = *m.Upgrade
			w.mu.Unlock()
		}
		if m.Kind == kindReload && len(fds) == 1 {
			go w.takeReload(m.Number, fds[0])
			continue
		}
		if m.Kind == kindReloaded && m.Reload != nil {
			w.noteReload(*m.Reload, m.Number)
		}
		if m.Kind == kindStream && len(fds) == 1 {
			if a := w.awaited(m.Name); a != nil {
				a.put(fds[0])
				continue
			}
		}
		closeAll(fds)
	}
}

// Context returns a context that is done when the supervisor stops the worker or is gone.
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

// Joined returns a channel that is closed when the named relay has sent its front end's state, or
// when all relays that existed at the start have.
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

// markJoined records that a relay has joined; "": all have.
func (w *Worker) markJoined(name string) {
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

// Take removes and returns the descriptors given under a name, or nil if there are none. The caller
// owns them.
func (w *Worker) Take(name string) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fds := w.given[name]
	delete(w.given, name)
	return fds
}

// PutBack gives back descriptors that Take returned, which it owns: Discard finds them.
func (w *Worker) PutBack(name string, fds ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	closeAll(w.given[name])
	w.given[name] = fds
}

// Names returns the names with a prefix under which descriptors were given and not taken.
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

// Discard closes the descriptors that were not taken, and makes the supervisor drop those of them
// that an earlier worker kept. So a worker must call it only once it has everything that it needs:
// if it fails before, the next worker needs them.
func (w *Worker) Discard() {
	w.mu.Lock()
	given := w.given
	w.given = map[string][]int{}
	w.mu.Unlock()
	for name, fds := range given { // without the lock: listen has to read the supervisor's answers meanwhile
		closeAll(fds)
		_ = w.ch.send(message{Kind: kindDrop, Name: name}) // fails only when the supervisor is gone
	}
}

// Keep gives the supervisor copies of descriptors for the next worker.
func (w *Worker) Keep(name string, fds ...int) error {
	return w.ch.send(message{Kind: kindKeep, Name: name}, fds...)
}

// Drop makes the supervisor close the descriptors kept under a name, and waits for that.
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
		return nil // the supervisor is gone with all descriptors, or the next worker discards them
	case <-time.After(sendLimit):
		return fmt.Errorf("%s: the supervisor does not answer", name)
	}
}

// Replace makes the supervisor end this worker and start the next, with the same program and configuration.
func (w *Worker) Replace() error {
	if !w.Replaces {
		return errors.New("this vnic run is older than its worker and cannot replace it: stop and start vnic run")
	}
	return w.ch.send(message{Kind: kindReplace})
}

// Ready tells the supervisor that the worker serves, and that it knows reloads.
func (w *Worker) Ready() error { return w.ch.send(message{Kind: kindReady, Name: readyReloads}) }

// readyReloads is the name in the kindReady of a worker that knows reloads.
const readyReloads = "reloads"

// Failed tells the supervisor why the worker ends.
func (w *Worker) Failed(why error) {
	_ = w.ch.send(message{Kind: kindFailed, Name: bounded(why.Error())}) // fails only when the supervisor is gone
}

// maxReason is the largest length of a reason in bytes. A Start has two, and JSON may need six bytes
// for one: together they must stay below maxMessage, or no worker could join.
const maxReason = 4 << 10

// Upgraded returns the results of the upgrades requested so far.
func (w *Worker) Upgraded() Upgrade {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Start.Upgrade
}

// Acceptor returns the acceptor of connections under a name.
func (w *Worker) Acceptor(name string) *Acceptor {
	w.mu.Lock()
	a, again := w.acceptors[name], false
	if a == nil {
		a, again = w.newAcceptor(name), w.before[name]
	}
	w.mu.Unlock()
	if again { // connections to the closed acceptor of that name are lost
		_ = w.ch.send(message{Kind: kindAgain, Name: name})
	}
	return a
}

// awaited returns the acceptor of a connection that the supervisor passes on. It returns nil if the
// acceptor of that name was closed: nobody would answer the front end, which waits for that. The next
// acceptor of the name asks for another connection.
func (w *Worker) awaited(name string) *Acceptor {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.acceptors[name]
	if a == nil && !w.before[name] {
		a = w.newAcceptor(name)
	}
	return a
}

func (w *Worker) newAcceptor(name string) *Acceptor {
	a := &Acceptor{conns: make(chan *net.UnixConn, maxStreams), done: make(chan struct{})}
	a.ended = func() { w.forget(name, a) }
	w.acceptors[name] = a
	return a
}

// forget removes a closed acceptor, so that another one can take its name.
func (w *Worker) forget(name string, a *Acceptor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acceptors[name] == a {
		delete(w.acceptors, name)
		w.before[name] = true
	}
}

// maxStreams is the number of connections that can wait for an acceptor.
const maxStreams = 16

// Acceptor accepts connections that the supervisor passes on; see qemu.Acceptor.
type Acceptor struct {
	conns chan *net.UnixConn
	once  sync.Once
	done  chan struct{}
	ended func()
}

// put queues a connection, or closes it if the queue is full.
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

// AcceptUnix returns the next connection. After Close it returns net.ErrClosed.
func (a *Acceptor) AcceptUnix() (*net.UnixConn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

// Close closes the acceptor and the connections that wait for it.
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

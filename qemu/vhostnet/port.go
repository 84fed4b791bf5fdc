package vhostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Config is the configuration of a port.
type Config struct {
	Name   string // for messages
	Queues int    // largest number of queue pairs; 0: 1
	MTU    int    // in bytes
	// Post makes the port's thread call f soon. It returns false if that thread has ended.
	Post   func(f func()) bool
	Ledger []byte // LedgerBytes of memory that outlives the process; nil: none
	Log    *slog.Logger
}

// LedgerBytes returns the size of the memory in which a port with so many queue pairs records the
// positions of its packed rings.
func LedgerBytes(queues int) int { return 2 * queues * virtqueue.LedgerSize }

// ledgerOf returns a ring's part of its port's ledger.
func ledgerOf(mem []byte, ring int) virtqueue.Ledger {
	if mem == nil {
		return nil
	}
	at := ring * virtqueue.LedgerSize
	return virtqueue.Ledger(mem[at : at+virtqueue.LedgerSize : at+virtqueue.LedgerSize])
}

// Port is a function's Ethernet port whose rings are in guest memory. See the package comment.
type Port struct {
	cfg      Config
	log      loglimit.Log
	epoll    int               // watches the kick eventfds; readable after a kick
	notifier *eventfd.Notifier // signals the call and err eventfds

	once   sync.Once
	closed atomic.Bool
	gone   chan struct{} // closed when the thread no longer uses the port
	reason atomic.Pointer[string]
	takes  atomic.Uint64 // features that the driver has accepted

	// Owned by the thread.
	mem      virtqueue.RAM
	rings    []*queue // by the protocol's number; nil: not started, or stopped
	tx, rx   []*queue // running rings by which the guest sends and receives
	at       int      // index in tx of the queue to read next
	burst    int      // frames read from that queue in a row
	header   int      // bytes in front of each frame
	features uint64
	awake    bool // the port polls the guest, which need not kick
	stats    Stats
	reading  virtqueue.Work // remaining work of this turn on frames from the guest
	writing  virtqueue.Work // remaining work of this turn on frames to the guest
	events   [8]unix.EpollEvent
	rests    rests // of frames read since Return
	begun    begun // position of the last frame written
	written  [maxBuffers]int
	parts    [1 + maxRestSegs][]byte
	hdr      [headerLen]byte
}

// begun is the position in a receive ring where a frame began.
type begun struct {
	queue *queue
	at    virtqueue.Mark
}

// queue is a started ring.
type queue struct {
	ring   virtqueue.Ring // nil: the port has failed
	number int
	kick   int
	owed   int    // chains that were read but not completed yet
	base   uint32 // position of a ring that failed or never ran
}

// Stats counts frames. Rx are frames from the guest, Tx frames to the guest.
type Stats struct {
	RxFrames, RxBytes, RxDropped uint64
	TxFrames, TxBytes, TxDropped uint64
}

const (
	minFrame   = 14 // the Ethernet header
	maxBuffers = 256
	queueBurst = 32 // frames read from one queue before the next one is read

	// Largest numbers of descriptors that are processed for a guest in one turn, whatever it puts
	// in its rings. The gateway reads frames of 240 KB in a turn: 300 descriptors for short frames,
	// 80 for GSO frames. Frames to a guest are up to a megabyte in a turn, in buffers of 1526 bytes
	// that are each looked at twice.
	readWork  = 1024
	writeWork = 8192
)

// New returns a port without a guest.
func New(c Config) (*Port, error) {
	c.Queues = max(c.Queues, 1)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Queues > MaxQueues {
		return nil, fmt.Errorf("port %s: %d queues, at most %d", c.Name, c.Queues, MaxQueues)
	}
	if c.Ledger != nil && len(c.Ledger) < LedgerBytes(c.Queues) {
		return nil, fmt.Errorf("port %s: a ledger of %d bytes for %d queues", c.Name, len(c.Ledger), c.Queues)
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("port %s: epoll: %w", c.Name, err)
	}
	p := &Port{cfg: c, log: loglimit.Log{To: c.Log.With("port", c.Name)}, epoll: fd, notifier: eventfd.NewNotifier(4 * c.Queues), gone: make(chan struct{})}
	p.rings, p.header = make([]*queue, 2*c.Queues), headerLen
	p.reading, p.writing = readWork, writeWork
	return p, nil
}

// FD returns a descriptor that is readable if the guest has kicked since the last Wake.
func (p *Port) FD() int { return p.epoll }

// Reason returns why the port does not work, or "" if it works or has no guest.
func (p *Port) Reason() string {
	if r := p.reason.Load(); r != nil {
		return *r
	}
	return ""
}

// Stats returns the port's counters.
func (p *Port) Stats() Stats { return p.stats }

// Wake begins to poll the guest and asks it for no kicks.
func (p *Port) Wake() {
	_, _ = unix.EpollWait(p.epoll, p.events[:], 0) // so that the descriptor is no longer readable
	if p.awake {
		return
	}
	p.awake = true
	defer p.survive(debug.SetPanicOnFault(true))
	for _, q := range p.tx {
		q.ring.Quiet()
	}
}

// Arm ends polling and asks the guest for kicks. It returns true, and changes nothing, if frames
// are already waiting.
func (p *Port) Arm() (waiting bool) {
	if !p.awake {
		return false
	}
	defer p.survive(debug.SetPanicOnFault(true))
	for _, q := range p.tx {
		waiting = q.ring.Arm() || waiting
	}
	if waiting {
		for _, q := range p.tx {
			q.ring.Quiet()
		}
		return true
	}
	p.awake = false
	return false
}

// Settle ends the guest's turn. It publishes the chains completed since the last call, and
// interrupts the guest if it asked for that.
func (p *Port) Settle() {
	p.reading, p.writing = readWork, writeWork
	if p.rests.n != 0 {
		p.Return()
	}
	defer p.survive(debug.SetPanicOnFault(true))
	for _, q := range p.rings {
		if q != nil && q.ring != nil {
			p.show(q)
		}
	}
}

// call returns the eventfd that signals completed chains of a ring; err returns the one that
// signals its failure.
func (p *Port) call(ring int) *eventfd.Event { return p.notifier.Event(2 * ring) }
func (p *Port) err(ring int) *eventfd.Event  { return p.notifier.Event(2*ring + 1) }

// setEvents sets the call and err descriptors of a ring.
func (p *Port) setEvents(ring, call, errfd int) error {
	return errors.Join(p.call(ring).Set(call), p.err(ring).Set(errfd))
}

// show publishes a ring's completed chains and interrupts the guest if it asked for that.
func (p *Port) show(q *queue) {
	if q.ring.Publish() {
		p.call(q.number).Signal()
	}
}

// survive is deferred by functions that access guest memory, as
//
//	defer p.survive(debug.SetPanicOnFault(true))
//
// It turns a fault into a failure of the port. before is what SetPanicOnFault returned.
func (p *Port) survive(before bool) {
	if r := recover(); r != nil {
		p.fail(virtqueue.Recovered(r))
	}
	debug.SetPanicOnFault(before)
}

// fail stops all rings until the guest's driver starts again. It keeps the position of each ring
// for StopVring.
func (p *Port) fail(err error) {
	for i, q := range p.rings {
		if q == nil || q.ring == nil {
			continue
		}
		q.base = q.ring.Base()
		q.ring = nil
		p.err(i).Signal()
	}
	p.tx, p.rx, p.at, p.burst = p.tx[:0], p.rx[:0], 0, 0
	p.rests.lose()
	why := err.Error()
	p.reason.Store(&why)
	go p.log.Warn("the port stopped: it works again when the guest's driver begins anew", "reason", why)
}

// Release records that the port's thread no longer uses the port, or has ended.
func (p *Port) Release() { p.once.Do(func() { close(p.gone) }) }

// Close releases and closes the port. Its front end must be gone, and its thread must no longer use
// it.
func (p *Port) Close() error {
	p.Release()
	if p.closed.Swap(true) {
		return fmt.Errorf("port %s: close: %w", p.cfg.Name, net.ErrClosed)
	}
	p.notifier.Close()
	return unix.Close(p.epoll)
}

// do makes the port's thread call f and waits for it. If that thread has released the port or has
// ended, do calls f itself, because nothing else uses the port then.
func (p *Port) do(f func()) {
	var begun atomic.Bool
	done := make(chan struct{})
	once := func() {
		if begun.CompareAndSwap(false, true) {
			f()
			close(done)
		}
	}
	if p.cfg.Post(once) {
		select {
		case <-done:
			return
		case <-p.gone:
		}
	}
	once()
	<-done
}

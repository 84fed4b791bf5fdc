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

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Config says what a port is.
type Config struct {
	Name   string // for people
	Queues int    // pairs, at most; 0: 1
	MTU    int    // bytes of the longest packet
	// Post has f called on the port's thread, soon; false: that thread has ended.
	Post   func(f func()) bool
	Ledger []byte // LedgerBytes of memory that outlives the process; nil: none
	Log    *slog.Logger
}

// LedgerBytes is the memory in which a port of so many pairs of queues notes where its packed rings
// stand.
func LedgerBytes(queues int) int { return 2 * queues * virtqueue.LedgerSize }

// ledgerOf is the part of a port's ledger that a ring has.
func ledgerOf(mem []byte, ring int) virtqueue.Ledger {
	if mem == nil {
		return nil
	}
	at := ring * virtqueue.LedgerSize
	return virtqueue.Ledger(mem[at : at+virtqueue.LedgerSize : at+virtqueue.LedgerSize])
}

// Port is a function's port in a guest's memory. See the package comment.
type Port struct {
	cfg   Config
	log   *slog.Logger
	warn  loglimit.Limiter
	epoll int           // of kicks; readable when there was one
	line  *eventfd.Line // signals the guest: call and err

	once   sync.Once
	closed atomic.Bool
	gone   chan struct{} // closed when the thread has given the port up
	reason atomic.Pointer[string]
	takes  atomic.Uint64 // features that the driver has taken

	side // the thread's
}

// side is what belongs to the port's thread.
type side struct {
	mem      virtqueue.RAM
	rings    []*queue // by the protocol's number; nil: it was not started, or is stopped
	tx, rx   []*queue // those that the guest sends by, and receives by
	at       int      // of tx, where to read next
	burst    int      // frames read there
	header   int      // bytes in front of each frame
	features uint64
	awake    bool // the guest is looked at, and need not kick
	stats    Stats
	reading  virtqueue.Work // what is left of the guest's turn, of frames that it sent
	writing  virtqueue.Work // and of those that it gets
	events   [8]unix.EpollEvent
	rests    rests // of frames that were read
	begun    begun // the last frame that was written
	written  [maxBuffers]int
	parts    [1 + maxRestSegs][]byte
	hdr      [headerLen]byte
}

// begun is where a frame for the guest began.
type begun struct {
	queue *queue
	at    virtqueue.Mark
}

// queue is a ring that runs.
type queue struct {
	virtqueue.Ring
	number int
	kick   int
	owed   int    // chains that were read, and are not the guest's yet
	base   uint32 // of one that failed
}

// Stats counts frames: Rx are those that the guest sent.
type Stats struct {
	RxFrames, RxBytes, RxDropped uint64
	TxFrames, TxBytes, TxDropped uint64
}

const (
	minFrame   = 14 // the Ethernet header
	maxBuffers = 256
	queueBurst = 32 // frames read from one queue before the next has its turn

	// What is done for a guest in its turn, in descriptors, whatever it puts in its rings. Frames of
	// 240 KB, which the gateway takes in a turn, have 300 where they are short and 80 where they
	// stand for many. What comes for a guest in a turn is up to a megabyte, in buffers of 1526
	// bytes that are looked at twice.
	readWork  = 1024
	writeWork = 8192
)

// New makes a port without a guest.
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
	p := &Port{cfg: c, log: c.Log.With("port", c.Name), epoll: fd, line: eventfd.NewLine(4 * c.Queues), gone: make(chan struct{})}
	p.rings, p.header = make([]*queue, 2*c.Queues), headerLen
	p.reading, p.writing = readWork, writeWork
	return p, nil
}

// FD is readable when the guest has kicked since the last Wake.
func (p *Port) FD() int { return p.epoll }

// Reason is why the port does not work; "": it does, or there is no guest.
func (p *Port) Reason() string {
	if r := p.reason.Load(); r != nil {
		return *r
	}
	return ""
}

// Stats returns the port's counters.
func (p *Port) Stats() Stats { return p.stats }

// Wake says that the guest is looked at from now on: it need not kick.
func (p *Port) Wake() {
	_, _ = unix.EpollWait(p.epoll, p.events[:], 0) // it is readable no longer
	if p.awake {
		return
	}
	p.awake = true
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	for _, q := range p.tx {
		q.Quiet()
	}
}

// Arm says that the guest is looked at no longer, and has to kick. It reports true, and nothing
// changes, if there are frames already.
func (p *Port) Arm() (waiting bool) {
	if !p.awake {
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	for _, q := range p.tx {
		waiting = q.Ring.Arm() || waiting
	}
	if waiting {
		for _, q := range p.tx {
			q.Quiet()
		}
		return true
	}
	p.awake = false
	return false
}

// Settle shows the guest what was read and written since, and interrupts it if it wants that: its
// turn is over.
func (p *Port) Settle() {
	p.reading, p.writing = readWork, writeWork
	if p.rests.n != 0 {
		p.Return()
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	for _, q := range p.rings {
		if q != nil && q.Ring != nil {
			p.show(q)
		}
	}
}

// call is signalled when chains of a ring are done, err when the ring is given up.
func (p *Port) call(ring int) *eventfd.Event { return p.line.Event(2 * ring) }
func (p *Port) err(ring int) *eventfd.Event  { return p.line.Event(2*ring + 1) }

// setEvents says which descriptors those of a ring are.
func (p *Port) setEvents(ring, call, errfd int) error {
	return errors.Join(p.call(ring).Set(call), p.err(ring).Set(errfd))
}

// show shows the guest what is done in a ring.
func (p *Port) show(q *queue) {
	if q.Publish() {
		p.call(q.number).Signal()
	}
}

// survive is deferred around what uses guest memory.
func (p *Port) survive() {
	if err := virtqueue.Recovered(recover()); err != nil {
		p.fail(err)
	}
}

// fail stops all rings: the guest's driver has to begin anew. Where each stands is kept, as far as
// that can be told.
func (p *Port) fail(err error) {
	for i, q := range p.rings {
		if q == nil || q.Ring == nil {
			continue
		}
		q.base = q.Base()
		q.Ring = nil
		p.err(i).Signal()
	}
	p.tx, p.rx, p.at, p.burst = p.tx[:0], p.rx[:0], 0, 0
	p.rests.lose()
	why := err.Error()
	p.reason.Store(&why)
	go p.warn.Warn(p.log, "the port stopped: it works again when the guest's driver begins anew", "reason", why)
}

// Release says that the port's thread has given it up, or has ended.
func (p *Port) Release() { p.once.Do(func() { close(p.gone) }) }

// Close ends the port. It was released and its front end is gone.
func (p *Port) Close() error {
	p.Release()
	if p.closed.Swap(true) {
		return fmt.Errorf("port %s: close: %w", p.cfg.Name, net.ErrClosed)
	}
	p.line.Close()
	return unix.Close(p.epoll)
}

// do has the port's thread call f, and returns when it has. Where that thread has given the port
// up, or has ended, it is called here: nobody else uses the port then.
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

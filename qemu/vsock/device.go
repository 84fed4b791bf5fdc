package vsock

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/vring"
)

// Queue numbers, Virtio §5.10.2. The names are from the guest's side.
const (
	QueueRX = 0
	QueueTX = 1
)

// Device is the device side of one guest's virtio-vsock queues. Its methods may
// be called from several goroutines.
type Device struct {
	*Transport
	log   *slog.Logger
	limit loglimit.Limiter

	mu      sync.Mutex // guards tx; taken before Transport.mu
	tx      *ring
	rx      *ring // guarded by Transport.mu
	scratch []byte
	notify  [2]notify // by queue
	signals *eventfd.Line
}

// notify holds the events by which a queue's driver learns that buffers were used (call) and that
// the queue has failed (err). It outlives the queue, so that signals which wait for a QEMU do not
// pile up.
type notify struct{ call, err *eventfd.Event }

// set replaces the descriptors. If it fails the driver gets no signals, as if it had passed none.
func (n *notify) set(call, errfd int) {
	_ = n.call.Set(call)
	_ = n.err.Set(errfd)
}

// ring is a started queue.
type ring struct {
	q      *vring.Queue
	notify *notify
	broken error
}

// NewDevice returns the device of the guest with context ID cid, without queues.
func NewDevice(cid uint32, log *slog.Logger) *Device {
	d := &Device{
		Transport: NewTransport(HostCID, cid),
		log:       log,
		scratch:   make([]byte, HeaderSize+bufAlloc),
		signals:   eventfd.NewLine(2 * len(Device{}.notify)),
	}
	for i := range d.notify {
		d.notify[i] = notify{d.signals.Event(2 * i), d.signals.Event(2*i + 1)}
	}
	return d
}

// Close ends all flows and the device.
func (d *Device) Close() {
	d.Transport.Close()
	d.signals.Close()
}

// Config fills b from the configuration space at off: the guest's context ID,
// Virtio §5.10.4.
func (d *Device) Config(off uint32, b []byte) bool { return Config(d.peer, off, b) }

// Config is Device.Config for the guest with context ID cid.
func Config(cid uint32, off uint32, b []byte) bool {
	space := binary.LittleEndian.AppendUint64(nil, uint64(cid))
	if uint64(off)+uint64(len(b)) > uint64(len(space)) {
		return false
	}
	copy(b, space[off:])
	return true
}

// Start starts queue i. call and errfd are eventfds, or negative for none. The caller owns them and
// must keep them open until Stop or the next SetCall.
func (d *Device) Start(i int, q *vring.Queue, call, errfd int) {
	r := &ring{q: q, notify: &d.notify[i]}
	r.notify.set(call, errfd)
	if i == QueueTX {
		d.mu.Lock()
		d.tx = r
		d.mu.Unlock()
	} else {
		d.Locked(func() { d.rx = r })
		d.SetLink(&rxLink{d: d, r: r})
	}
	d.Kick(i)
}

// SetCall replaces the eventfds of a queue. It then signals call once, in case buffers were used in
// between.
func (d *Device) SetCall(i, call, errfd int) {
	d.exclusive(func() {
		if r := d.ring(i); r != nil {
			r.notify.set(call, errfd)
			r.interrupt()
		}
	})
}

// Stop stops queue i and returns the index of its next available entry. The queue's memory is not
// accessed any more. When both queues are stopped the guest's driver is gone, and all flows end.
func (d *Device) Stop(i int) (base uint16) {
	d.exclusive(func() {
		r := d.ring(i)
		if r == nil {
			return
		}
		base = r.q.Base()
		r.notify.set(eventfd.None, eventfd.None)
		if i == QueueTX {
			d.tx = nil
		} else {
			d.rx, d.link = nil, nil
		}
		if d.rx == nil && d.tx == nil {
			d.resetAll()
		}
	})
	return base
}

// Rebind calls f for each running queue while nothing uses the queues, so that f can move them to
// other memory. A queue for which f fails is not used any more.
func (d *Device) Rebind(f func(i int, q *vring.Queue) error) error {
	var first error
	d.exclusive(func() {
		for i := QueueRX; i <= QueueTX; i++ {
			r := d.ring(i)
			if r == nil {
				continue
			}
			if err := f(i, r.q); err != nil {
				r.broken = err
				if first == nil {
					first = fmt.Errorf("queue %d: %w", i, err)
				}
			}
		}
	})
	return first
}

func (d *Device) exclusive(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Locked(f)
}

func (d *Device) ring(i int) *ring {
	if i == QueueTX {
		return d.tx
	}
	return d.rx
}

// Kick handles the driver's notification of queue i.
func (d *Device) Kick(i int) {
	if i == QueueRX {
		d.Pump()
		return
	}
	for d.drain() {
	}
}

// txQuantum is the largest number of packets handled before the lock is released, so that a guest
// which never stops sending cannot keep Stop or SetCall waiting.
const txQuantum = 64

// drain handles up to txQuantum packets from the guest. It returns true if there may be more.
func (d *Device) drain() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.tx
	if r == nil || r.broken != nil {
		return false
	}
	defer d.Pump() // sends answers once per call, not once per packet
	n := 0
	for ; n < txQuantum; n++ {
		ch, err := r.q.Peek()
		if err != nil {
			d.breakRing(QueueTX, r, err)
			return false
		}
		if ch == nil {
			break
		}
		// A packet longer than scratch exceeds any credit. It is cut, so the length in its header
		// does not match and it is dropped.
		k, err := r.q.Read(ch, d.scratch)
		if err == nil {
			d.Locked(func() { d.input(d.scratch[:k]) })
			err = r.q.Push(ch, 0)
		}
		if err != nil {
			d.breakRing(QueueTX, r, err)
			return false
		}
	}
	if n > 0 && r.q.Interrupt() {
		r.interrupt()
	}
	return n == txQuantum
}

// breakRing stops using a ring whose content is invalid. The ring stays unused until the driver
// sets it up again.
func (d *Device) breakRing(i int, r *ring, err error) {
	r.broken = err
	d.refuse(i, err)
}

// Refuse logs why queue i, which was not started, is not used, and signals its error eventfd.
func (d *Device) Refuse(i int, err error, errfd int) {
	n := &d.notify[i]
	_ = n.err.Set(errfd)
	d.refuse(i, err)
	_ = n.err.Set(eventfd.None)
}

func (d *Device) refuse(i int, err error) {
	d.limit.Warn(d.log, "vsock queue not used until the guest's next reset", "queue", i, "reason", err)
	d.notify[i].err.Signal()
}

func (r *ring) interrupt() { r.notify.call.Signal() }

// rxLink is the Link over the guest's receive queue.
type rxLink struct {
	d  *Device
	r  *ring
	ch *vring.Chain // peeked by Room
}

func (l *rxLink) Room() int {
	l.ch = nil
	if l.r.broken != nil {
		return 0
	}
	ch, err := l.r.q.Peek()
	if err == nil && ch != nil && ch.WriteLen() <= HeaderSize {
		err = fmt.Errorf("%w: receive buffer of %d bytes, a packet needs more than %d", vring.ErrQueue, ch.WriteLen(), HeaderSize)
	}
	if err != nil {
		l.d.breakRing(QueueRX, l.r, err)
		return 0
	}
	if ch == nil {
		return 0
	}
	l.ch = ch
	return ch.WriteLen()
}

func (l *rxLink) Put(pkt []byte) {
	err := l.r.q.Write(l.ch, pkt)
	if err == nil {
		err = l.r.q.Push(l.ch, len(pkt))
	}
	if err != nil {
		l.d.breakRing(QueueRX, l.r, err)
	}
}

func (l *rxLink) Flush() {
	if l.r.broken == nil && l.r.q.Interrupt() {
		l.r.interrupt()
	}
}

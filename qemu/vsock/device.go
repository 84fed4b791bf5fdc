package vsock

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Queue numbers, Virtio §5.10.2. The names are from the guest's side.
const (
	QueueRX = 0
	QueueTX = 1
)

// Device is the device side of one guest's virtio-vsock queues. Its methods may
// be called from several goroutines.
type Device struct {
	Flows *Transport // to the guest
	log   loglimit.Log

	mu      sync.Mutex // guards tx; taken before Flows.mu
	tx      *ring
	rx      *ring // guarded by Flows.mu
	scratch []byte
	notify  [2]notify // by queue
	signals *eventfd.Notifier
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

// ring is a started queue. Its memory is the guest's: each access is guarded (virtqueue.Guard).
type ring struct {
	q      virtqueue.Ring
	work   virtqueue.Work // what is left of a turn
	wanted bool           // the driver wants an interrupt for what was published since the last one
	notify *notify
	broken error
}

// ringWork is how many descriptors a turn on a ring may read. With it a turn makes progress with
// any ring.
const ringWork = 4 * virtqueue.MaxSegments

// read takes the driver's next packet and copies as much of it to b as fits. It returns ok false if
// there is none or the turn's work is used up.
func (r *ring) read(b []byte) (n int, ok bool, err error) {
	fault := virtqueue.Guard(func() {
		var ch *virtqueue.Chain
		if ch, err = r.q.Take(&r.work); ch == nil {
			return
		}
		ok = true
		for _, s := range ch.Out() {
			n += copy(b[n:], s)
		}
	})
	return n, ok, cmp.Or(err, fault)
}

// done completes and publishes the oldest chain that was taken. It does so for each chain by
// itself: if this process is killed, the next one goes on behind the last chain that is published.
func (r *ring) done(written int) error {
	return virtqueue.Guard(func() {
		r.q.Done(written)
		r.wanted = r.q.Publish() || r.wanted
	})
}

// waiting reports whether the driver has made a chain available that was not taken.
func (r *ring) waiting() (waiting bool, err error) {
	err = virtqueue.Guard(func() { waiting = r.q.Arm() })
	return waiting, err
}

// tell interrupts the driver if it wants that for what was published.
func (r *ring) tell() {
	if r.wanted {
		r.wanted = false
		r.interrupt()
	}
}

// NewDevice returns the device of the guest with context ID cid, without queues.
func NewDevice(cid uint32, log *slog.Logger) *Device {
	d := &Device{
		Flows:   NewTransport(HostCID, cid),
		log:     loglimit.Log{To: log},
		scratch: make([]byte, HeaderSize+bufAlloc),
		signals: eventfd.NewNotifier(2 * len(Device{}.notify)),
	}
	for i := range d.notify {
		d.notify[i] = notify{d.signals.Event(2 * i), d.signals.Event(2*i + 1)}
	}
	return d
}

// Close ends all flows and the device.
func (d *Device) Close() {
	d.Flows.Close()
	d.signals.Close()
}

// Config fills b from the configuration space at off: the guest's context ID,
// Virtio §5.10.4.
func (d *Device) Config(off uint32, b []byte) bool { return Config(d.Flows.peer, off, b) }

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
func (d *Device) Start(i int, q virtqueue.Ring, call, errfd int) {
	r := &ring{q: q, notify: &d.notify[i]}
	r.notify.set(call, errfd)
	if i == QueueTX {
		d.mu.Lock()
		d.tx = r
		d.mu.Unlock()
	} else {
		d.Flows.Locked(func() { d.rx = r })
		d.Flows.SetLink(&rxLink{d: d, r: r})
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
		base = uint16(r.q.Base())
		r.notify.set(eventfd.None, eventfd.None)
		if i == QueueTX {
			d.tx = nil
		} else {
			d.rx, d.Flows.link = nil, nil
		}
		if d.rx == nil && d.tx == nil {
			d.Flows.resetAll()
		}
	})
	return base
}

// Rebind calls f for each running queue while nothing uses the queues, so that f can move them to
// other memory. A queue for which f fails is not used any more.
func (d *Device) Rebind(f func(i int, q virtqueue.Ring) error) error {
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
	d.Flows.Locked(f)
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
		d.Flows.Pump()
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
	defer d.Flows.Pump() // sends answers once per call, not once per packet
	r.work = ringWork
	for range txQuantum {
		// A packet longer than scratch exceeds any credit. It is cut, so the length in its header
		// does not match and it is dropped.
		n, ok, err := r.read(d.scratch)
		if err == nil && ok {
			d.Flows.Locked(func() { d.Flows.input(d.scratch[:n]) })
			err = r.done(0)
		}
		if err != nil {
			d.breakRing(QueueTX, r, err)
			return false
		}
		if !ok {
			break
		}
	}
	r.tell()
	more, err := r.waiting()
	if err != nil {
		d.breakRing(QueueTX, r, err)
	}
	return more
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
	d.log.Warn("vsock queue not used until the guest's next reset", "queue", i, "reason", err)
	d.notify[i].err.Signal()
}

func (r *ring) interrupt() { r.notify.call.Signal() }

// rxLink is the Link over the guest's receive queue.
type rxLink struct {
	d  *Device
	r  *ring
	ch *virtqueue.Chain // taken by Room, and not filled yet
	at virtqueue.Mark   // position of ch
}

// Room takes the next chain. It takes the same chain again if nothing was put into it: the guest's
// memory may have changed since.
func (l *rxLink) Room() int {
	if l.r.broken != nil {
		return 0
	}
	var err error
	fault := virtqueue.Guard(func() {
		if l.ch != nil {
			l.r.q.Back(l.at)
		}
		l.at, l.r.work = l.r.q.Mark(), ringWork
		l.ch, err = l.r.q.Take(&l.r.work)
	})
	if err = cmp.Or(err, fault); err == nil && l.ch != nil && l.ch.InLen <= HeaderSize {
		err = fmt.Errorf("%w: receive buffer of %d bytes, a packet needs more than %d", virtqueue.ErrRing, l.ch.InLen, HeaderSize)
	}
	switch {
	case err != nil:
		l.d.breakRing(QueueRX, l.r, err)
		return 0
	case l.ch == nil:
		return 0
	}
	return l.ch.InLen
}

func (l *rxLink) Put(pkt []byte) {
	n, bufs := len(pkt), l.ch.In()
	l.ch = nil
	err := virtqueue.Guard(func() {
		for _, b := range bufs {
			pkt = pkt[copy(b, pkt):]
		}
	})
	if err == nil {
		err = l.r.done(n)
	}
	if err != nil {
		l.d.breakRing(QueueRX, l.r, err)
	}
}

func (l *rxLink) Flush() { l.r.tell() }

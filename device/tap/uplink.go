package tap

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Uplink connects a NIC, or one shard of it, with the network: a TAP, a UDP socket (package udp) or
// a port of a switch in memory (package fabric). No call blocks. An uplink has one owner at a time:
// Read, Write and Close must not run concurrently with each other.
type Uplink interface {
	// Name returns the interface name, for people.
	Name() string
	// FD returns a descriptor that is readable (poll's POLLIN) while frames wait. The uplink
	// keeps ownership of it.
	FD() int
	// Read reads up to len(bufs) waiting Ethernet frames, one per buffer, and describes them in
	// got, which must be at least as long as bufs. It returns the number of frames, 0 and nil when
	// none waits. It may leave some for the next call. Buffers must hold BufferSize bytes; a longer
	// frame is dropped and counted.
	Read(bufs [][]byte, got []Received) (int, error)
	// Write sends frames and returns how many were taken: fewer than given, with a nil error, when
	// the uplink is full. Frames shorter than an Ethernet header or longer than MTU()+18 are dropped
	// and counted as taken. Adjacent frames may be sent together as a superframe, if the uplink
	// supports that. more means that the caller will soon write further frames: then the last
	// frames may be left until the next call if they could form a longer superframe with those.
	Write(frames [][]byte, more bool) (int, error)
	// MTU returns the largest Ethernet payload in bytes.
	MTU() int
	// Capabilities returns what the uplink supports beyond single frames.
	Capabilities() Capabilities
	// Stats returns the uplink's counters.
	Stats() Stats
	// Close releases the uplink. A device that it created disappears with it. Closing twice is an
	// error (net.ErrClosed).
	Close() error
}

// Received describes a frame that Read returned.
type Received struct {
	Len int // bytes
	// Segment is 0 unless the frame is a superframe: a UDP datagram in one IP packet, longer than
	// the MTU, that stands for several datagrams with equal headers. Each has Segment bytes of its
	// payload; the last may have fewer.
	Segment int
}

// Capabilities describes what an uplink supports beyond single frames.
type Capabilities struct {
	USO         bool // superframes are sent and received
	MaxSegments int  // maximum number of datagrams in one superframe; 1 without USO
	Queues      int  // queues of a TAP, 0 for another kind of uplink
}

// BufferSize returns the size of p.Read's buffers, bytes.
func BufferSize(p Uplink) int {
	if p.Capabilities().USO {
		return maxPacket + FrameOverhead
	}
	return p.MTU() + FrameOverhead
}

// Stats counts the frames that an uplink carried and dropped. Each datagram of a superframe counts as
// a frame, with its headers.
type Stats struct {
	RxFrames, RxBytes    uint64
	TxFrames, TxBytes    uint64
	RxDropped, TxDropped uint64 // malformed, too long, or no room

	// On sockets:
	RxOverflowed uint64 // dropped by the kernel, because the buffer was full
	TxTooLong    uint64 // longer than the interface takes
	TxRefused    uint64 // without a route, or forbidden

	RxSuperframes, TxSuperframes uint64
}

// FrameOverhead is the room that buffers need above the MTU for an Ethernet header and a VLAN tag,
// bytes.
const FrameOverhead = 18

// MinFrame is the shortest frame accepted: the Ethernet header, bytes.
const MinFrame = 14

// ErrDown is returned by Write while the interface is administratively down.
var ErrDown = errors.New("tap: interface is down")

// uplink is an Uplink on a TAP's descriptors, for all backends.
type uplink struct {
	name   string
	mtu    int
	dev    opened
	queues queues
	caps   Capabilities
	super  bool // whether superframes are written
	closed bool
	stats  Stats
	rx, tx vector
}

var _ Uplink = (*uplink)(nil)

func newUplink(name string, mtu int, dev opened) (*uplink, error) {
	q, err := newQueues(dev.fds)
	if err != nil {
		return nil, err
	}
	caps := Capabilities{USO: dev.segments > 1, MaxSegments: max(dev.segments, 1), Queues: len(dev.fds)}
	return &uplink{name: name, mtu: mtu, dev: dev, queues: q, caps: caps, super: caps.USO, rx: newVector(1), tx: newVector(caps.MaxSegments)}, nil
}

func (p *uplink) Name() string { return p.name }

func (p *uplink) FD() int { return p.queues.fd() }

func (p *uplink) MTU() int { return p.mtu }

func (p *uplink) Stats() Stats { return p.stats }

func (p *uplink) Capabilities() Capabilities { return p.caps }

// Read implements Uplink.
func (p *uplink) Read(bufs [][]byte, got []Received) (n int, err error) {
	if p.closed {
		return 0, p.fail("read", net.ErrClosed)
	}
	total := 0
	for _, fd := range p.queues.waiting() {
		k, errno := p.readQueue(fd, bufs[n:], got[n:], &total)
		n += k
		if errno != 0 {
			return n, p.fail("read", errno)
		}
	}
	return n, nil
}

// readQueue reads the frames that wait in one queue, until the total of all queues reaches
// readBurst.
func (p *uplink) readQueue(fd int, bufs [][]byte, got []Received, total *int) (n int, errno unix.Errno) {
	for n < len(bufs) && *total < readBurst {
		size, errno := p.rx.readv(fd, p.dev.header, bufs[n])
		switch errno {
		case 0:
		case unix.EAGAIN:
			return n, 0
		case unix.EINTR:
			continue
		default:
			return n, errno
		}
		if p.accept(bufs[n], size-p.dev.header, &got[n]) {
			*total += got[n].Len
			n++
		}
	}
	return n, 0
}

// readBurst is about how many bytes one Read takes: four superframes, so that one turn serves them,
// and a port's guest is woken once for all of their packets. That much data is still in the
// processor's second-level cache when it is opened. A larger burst would also save polling a port
// that has more.
const readBurst = 240_000

// accept describes and counts the frame of size bytes in buf. It rejects data that is not an
// Ethernet frame, superframes that were not negotiated, and frames that may have been cut: the
// kernel does not report that a frame was longer than the buffer.
func (p *uplink) accept(buf []byte, size int, got *Received) bool {
	longest := p.mtu + FrameOverhead
	var h vnetHeader // all zero when there is none
	if p.dev.header > 0 {
		h = parseVnetHeader(p.rx.header[:])
	}
	r, ok := Received{}, size >= 0 && (size < len(buf) || len(buf) >= longest)
	if ok {
		r, ok = inspect(h, buf[:size], p.mtu)
	}
	if !ok || r.Segment > 0 && !p.caps.USO {
		p.stats.RxDropped++
		return false
	}
	*got = r
	p.stats.RxFrames++
	p.stats.RxBytes += uint64(size)
	if r.Segment > 0 {
		headers := headersOf(buf[:size])
		more := r.datagrams(headers) - 1
		p.stats.RxFrames += uint64(more)
		p.stats.RxBytes += uint64(more * headers)
		p.stats.RxSuperframes++
	}
	return true
}

// Write implements Uplink.
func (p *uplink) Write(frames [][]byte, more bool) (n int, err error) {
	if p.closed {
		return 0, p.fail("write", net.ErrClosed)
	}
	for n < len(frames) {
		f := frames[n]
		if len(f) < MinFrame || len(f) > p.mtu+FrameOverhead {
			p.stats.TxDropped++
			n++
			continue
		}
		run, errno := p.writeNext(frames[n:], more)
		switch errno {
		case 0:
			if run == 0 {
				return n, nil
			}
			for _, f := range frames[n : n+run] {
				p.stats.TxBytes += uint64(len(f))
			}
			p.stats.TxFrames += uint64(run)
			n += run
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return n, nil
		case unix.EIO:
			return n, ErrDown
		default:
			return n, p.fail("write", errno)
		}
	}
	return n, nil
}

// writeNext writes the first frame, together with those that fit into one superframe with it. It
// returns how many were written: 0 if further frames may still extend the superframe (more).
func (p *uplink) writeNext(frames [][]byte, more bool) (run int, errno unix.Errno) {
	if p.super {
		r := p.tx.gather(frames)
		if more && r.open {
			return 0, 0
		}
		if run := r.frames; run > 1 {
			errno := p.tx.writeSuper(p.dev.fds[0], r.headers, frames[:run])
			if errno == 0 {
				p.stats.TxSuperframes++
			}
			if errno != unix.EINVAL {
				return run, errno
			}
			p.super = false // the kernel accepted USO when the device was opened, but now refuses it
		}
	}
	return 1, p.tx.writev(p.dev.fds[0], p.dev.header, frames[0])
}

// Close implements Uplink.
func (p *uplink) Close() error {
	if p.closed {
		return p.fail("close", net.ErrClosed)
	}
	p.closed = true
	if err := errors.Join(p.queues.close(), p.dev.close()); err != nil {
		return p.fail("close", err)
	}
	return nil
}

func (p *uplink) fail(op string, err error) error {
	if errno, ok := err.(unix.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	if err, ok := err.(*os.SyscallError); ok && err.Err == unix.EBADFD {
		return fmt.Errorf("tap %q: the interface was deleted: %w", p.name, err)
	}
	return fmt.Errorf("tap %q: %s: %w", p.name, op, err)
}

// MaxQueues bounds the queues of a TAP.
const MaxQueues = 16

// queues holds the descriptors of one TAP. The kernel puts each flow that it sends to us into one
// of them, so that senders on several processors do not wait for each other. If there are several,
// an epoll instance reports which have frames.
//
//	bridge, processor 1 ──▶ queue 0 ─┐
//	bridge, processor 2 ──▶ queue 1 ─┴─▶ epoll ──▶ Read
type queues struct {
	fds    []int
	epoll  int // epoll instance if there are several; -1: only one
	first  int // rotates the order, so that all queues get their turn
	events [MaxQueues]unix.EpollEvent
	ready  [MaxQueues]int
}

func newQueues(fds []int) (q queues, err error) {
	q = queues{fds: fds, epoll: -1}
	if len(fds) == 1 {
		return q, nil
	}
	if q.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return q, fmt.Errorf("epoll: %w", err)
	}
	for _, fd := range fds {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(q.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
			return q, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(q.epoll))
		}
	}
	return q, nil
}

// fd returns a descriptor that is readable while a frame waits in any queue.
func (q *queues) fd() int {
	if q.epoll >= 0 {
		return q.epoll
	}
	return q.fds[0]
}

// waiting lists the queues that have frames, starting with another one each time.
func (q *queues) waiting() []int {
	if q.epoll < 0 {
		return q.fds
	}
	n := Ready(q.epoll, q.events[:])
	q.first++
	for i := range n {
		q.ready[i] = int(q.events[(q.first+i)%n].Fd)
	}
	return q.ready[:n]
}

// close closes the epoll instance; the descriptors belong to their opener.
func (q *queues) close() error {
	if q.epoll < 0 {
		return nil
	}
	return unix.Close(q.epoll)
}

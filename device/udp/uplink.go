package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
)

// Bounds of one system call.
const (
	messages    = 8       // datagrams, or superframes
	maxSegments = 64      // datagrams in a superframe that is sent (UDP_MAX_SEGMENTS)
	vectors     = 128     // datagrams in all superframes that are sent together
	readBurst   = 240_000 // bytes after which a Read ends; see package tap
)

// Layout of frames: Ethernet, IP without options, UDP.
const (
	ipAt      = 14
	ip4TOS    = ipAt + 1
	ip4Dst    = ipAt + 16
	ip6Dst    = ipAt + 24
	udpLen    = 8
	maxPacket = 1<<16 - 1 // bytes of IP packet
)

// uplink is the uplink of one shard. It implements tap.Uplink.
type uplink struct {
	own      netip.AddrPort
	mtu      int
	headroom int // of frames
	longest  int // payload of a superframe that is sent
	super    bool
	onePort  bool
	listen   int       // socket that receives; -1: closed
	paths    [256]int  // socket of each path, by the low bits of its number; 0: none yet
	lost     uint32    // datagrams that did not fit the socket's buffer, as the kernel counts them
	stats    tap.Stats // frames have lengths with headers, as on a TAP
	rx       receiving
	tx       sending
}

var _ tap.Uplink = (*uplink)(nil)

func newUplink(c *Config, listen int) *uplink {
	p := &uplink{
		own: c.Listen, mtu: c.MTU, headroom: underlay.HeaderLen(c.Listen.Addr()) + ipAt,
		super: c.Superframes, onePort: c.OnePort, listen: listen,
	}
	p.longest = maxPacket - underlay.HeaderLen(c.Listen.Addr())
	p.rx.init()
	p.tx.init(c.Listen.Addr().Is6())
	return p
}

// Name implements tap.Uplink.
func (p *uplink) Name() string { return "udp" }

// FD implements tap.Uplink.
func (p *uplink) FD() int { return p.listen }

// MTU implements tap.Uplink.
func (p *uplink) MTU() int { return p.mtu }

// Stats implements tap.Uplink.
func (p *uplink) Stats() tap.Stats {
	s := p.stats
	s.TxSuperframes = p.tx.supers
	return s
}

// Capabilities implements tap.Uplink. Superframes may come even if none is sent: nothing keeps a peer
// from them.
func (p *uplink) Capabilities() tap.Capabilities {
	return tap.Capabilities{USO: true, MaxSegments: maxSegments, Queues: 1}
}

// Read implements tap.Uplink.
func (p *uplink) Read(bufs [][]byte, got []tap.Received) (n int, err error) {
	if p.listen < 0 {
		return 0, p.fail("read", net.ErrClosed)
	}
	for total := 0; n < len(bufs) && total < readBurst; {
		asked := min(messages, len(bufs)-n)
		came, errno := p.rx.receive(p.listen, bufs[n:n+asked], p.headroom)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return n, nil
		case unix.EINTR:
			continue
		default:
			return n, p.fail("read", errno)
		}
		first := n
		for i := range came {
			if p.accept(i, bufs[first+i], &got[n]) {
				total += got[n].Len
				bufs[n], bufs[first+i] = bufs[first+i], bufs[n] // keep frames together if one is left out
				n++
			}
		}
		if came < asked {
			return n, nil
		}
	}
	return n, nil
}

// accept completes and counts the frame of the i-th message received. It rejects what is longer
// than the MTU or than the buffer.
func (p *uplink) accept(i int, buf []byte, got *tap.Received) bool {
	m := p.rx.message(i)
	if lost := int32(m.lost - p.lost); lost > 0 { // the kernel's count has 32 bits, and is left out while it is 0
		p.stats.RxOverflowed += uint64(lost)
		p.lost = m.lost
	}
	longest := m.length // of the datagrams in it
	if m.segment > 0 && m.segment < m.length {
		longest = m.segment
	} else {
		m.segment = 0
	}
	if m.cut || longest+p.headroom-ipAt > p.mtu {
		p.stats.RxDropped++
		return false
	}
	o := underlay.Outer{Src: m.from, Dst: p.own, Class: m.class, TTL: m.ttl}
	o.PutFrame(buf, m.length)
	*got = tap.Received{Len: p.headroom + m.length, Segment: m.segment}
	p.stats.RxFrames++
	p.stats.RxBytes += uint64(got.Len)
	if m.segment > 0 {
		more := uint64(m.length-1) / uint64(m.segment)
		p.stats.RxFrames += more
		p.stats.RxBytes += more * uint64(p.headroom)
		p.stats.RxSuperframes++
	}
	return true
}

// Write implements tap.Uplink.
func (p *uplink) Write(frames [][]byte, more bool) (n int, err error) {
	if p.listen < 0 {
		return 0, p.fail("write", net.ErrClosed)
	}
	for n < len(frames) {
		if len(frames[n]) < p.headroom || len(frames[n])-ipAt > p.mtu {
			p.stats.TxDropped++
			n++
			continue
		}
		fd, err := p.socket(frames[n])
		if err != nil {
			return n, p.fail("write", err)
		}
		if p.gather(frames[n:], more) == 0 {
			return n, nil
		}
		sent, errno := p.tx.send(fd)
		for _, f := range frames[n : n+sent] {
			p.stats.TxBytes += uint64(len(f))
		}
		p.stats.TxFrames += uint64(sent)
		n += sent
		switch errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return n, nil
		default:
			if errno == unix.EIO && p.tx.next() > 1 {
				p.super = false // a device on the way cannot sum what it cuts
				continue
			}
			n += p.refused(errno)
		}
	}
	return n, nil
}

// refused counts the datagrams that the kernel did not take for a reason that concerns them, and
// returns how many.
func (p *uplink) refused(errno unix.Errno) int {
	n := p.tx.next()
	if errno == unix.EMSGSIZE || errno == unix.EINVAL { // EINVAL: the datagrams of a superframe
		p.stats.TxTooLong += uint64(n)
	} else {
		p.stats.TxRefused += uint64(n)
	}
	return n
}

// gather prepares the messages for the frames at the start of a list, which go to one socket. It
// returns how many there are: none if further frames may still extend the only one (more).
func (p *uplink) gather(frames [][]byte, more bool) int {
	p.tx.begin()
	path := p.pathOf(frames[0])
	for n := 0; n < len(frames) && !p.tx.full(); {
		if p.pathOf(frames[n]) != path || len(frames[n]) < p.headroom || len(frames[n])-ipAt > p.mtu {
			break
		}
		run, open := p.run(frames[n:])
		if open && more {
			break
		}
		p.tx.add(frames[n:n+run], p.headroom)
		n += run
	}
	return p.tx.count
}

// run returns the length of the run at the start of frames that forms one superframe, and whether
// it ends with the list while one more frame could join.
func (p *uplink) run(frames [][]byte) (n int, open bool) {
	first := frames[0]
	if !p.super {
		return 1, false
	}
	size := len(first) - p.headroom
	for n = 1; n < min(maxSegments, p.tx.room()); n++ {
		if n == len(frames) {
			return n, size+len(first)-p.headroom <= p.longest
		}
		f := frames[n]
		size += len(f) - p.headroom
		if len(f) > len(first) || len(f) <= p.headroom || size > p.longest || !p.sameFlow(first, f) {
			return n, false
		}
		if len(f) < len(first) {
			return n + 1, false // a shorter datagram is the last one
		}
	}
	return n, false
}

// sameFlow reports whether two frames go to one place by one path, marked alike.
func (p *uplink) sameFlow(a, b []byte) bool {
	udp := p.headroom - udpLen
	if !bytes.Equal(a[udp:udp+4], b[udp:udp+4]) {
		return false
	}
	if p.tx.v6 {
		return bytes.Equal(a[ip6Dst:udp], b[ip6Dst:udp]) && bytes.Equal(a[ipAt:ipAt+2], b[ipAt:ipAt+2])
	}
	return bytes.Equal(a[ip4Dst:udp], b[ip4Dst:udp]) && a[ip4TOS] == b[ip4TOS]
}

// pathOf returns the low bits of a frame's path.
func (p *uplink) pathOf(frame []byte) byte {
	if p.onePort || len(frame) < p.headroom {
		return 0
	}
	return frame[p.headroom-udpLen+1]
}

// socket returns the socket that a frame is sent from.
func (p *uplink) socket(frame []byte) (fd int, err error) {
	if p.onePort {
		return p.listen, nil
	}
	at := &p.paths[p.pathOf(frame)]
	if *at == 0 {
		*at, err = openPath(p.own.Addr())
	}
	return *at, err
}

// Close implements tap.Uplink.
func (p *uplink) Close() error {
	if p.listen < 0 {
		return p.fail("close", net.ErrClosed)
	}
	err := unix.Close(p.listen)
	for _, fd := range p.paths {
		if fd != 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	p.listen, p.paths = -1, [256]int{}
	return err
}

func (p *uplink) fail(op string, err error) error {
	if errno, ok := err.(unix.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return fmt.Errorf("udp %s: %s: %w", p.own, op, err)
}

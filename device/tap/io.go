package tap

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// port is a Port on a TAP descriptor, whichever backend opened it.
type port struct {
	name   string
	mtu    int
	dev    opened
	closed bool
	stats  Stats
	rx, tx vector
}

var _ Port = (*port)(nil)

func newPort(name string, mtu int, dev opened) *port { return &port{name: name, mtu: mtu, dev: dev} }

func (p *port) Name() string { return p.name }
func (p *port) FD() int      { return p.dev.fd }
func (p *port) MTU() int     { return p.mtu }
func (p *port) Stats() Stats { return p.stats }

// Read implements Port.
func (p *port) Read(bufs [][]byte, lens []int) (n int, err error) {
	if p.closed {
		return 0, p.fail("read", net.ErrClosed)
	}
	for n < len(bufs) {
		got, errno := p.rx.readv(p.dev.fd, p.dev.header, bufs[n])
		switch {
		case errno == unix.EAGAIN:
			return n, nil
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return n, p.fail("read", errno)
		}
		got -= p.dev.header
		if !p.acceptable(got, len(bufs[n])) {
			p.stats.RxDropped++
			continue
		}
		p.stats.RxFrames++
		p.stats.RxBytes += uint64(got)
		lens[n] = got
		n++
	}
	return n, nil
}

// acceptable refuses what is no Ethernet frame, what is a superframe (no offload was enabled), and what was perhaps cut: the kernel
// does not say when a frame was longer than the buffer.
func (p *port) acceptable(got, room int) bool {
	const gsoType = 1 // offset in the virtio-net header, which is all zero when there is none
	longest := p.mtu + FrameOverhead
	return got >= MinFrame && got <= longest && (got < room || room >= longest) && p.rx.header[gsoType] == 0
}

// Write implements Port.
func (p *port) Write(frames [][]byte) (n int, err error) {
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
		switch errno := p.tx.writev(p.dev.fd, p.dev.header, f); errno {
		case 0:
			p.stats.TxFrames++
			p.stats.TxBytes += uint64(len(f))
			n++
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

// Close implements Port.
func (p *port) Close() error {
	if p.closed {
		return p.fail("close", net.ErrClosed)
	}
	p.closed = true
	if err := p.dev.close(); err != nil {
		return p.fail("close", err)
	}
	return nil
}

func (p *port) fail(op string, err error) error {
	if errno, ok := err.(unix.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	if err, ok := err.(*os.SyscallError); ok && err.Err == unix.EBADFD {
		return fmt.Errorf("tap %q: the interface was deleted: %w", p.name, err)
	}
	return fmt.Errorf("tap %q: %s: %w", p.name, op, err)
}

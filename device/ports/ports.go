package ports

import (
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Bounds of what is read from the ports in one turn.
const (
	portBurst = 240_000                        // bytes, about four frames that stand for many: still in the processor's cache when they are sealed
	portArena = portBurst + tap.FunctionBuffer // a frame may need a whole buffer
	portBatch = 64                             // frames
	portReady = 16                             // ports
)

// Set is the functions' ports as the loop reads and writes them. All are in one epoll instance,
// so that a turn asks once whichever there are, and an idle port costs nothing. It implements
// thread.Ports.
type Set struct {
	of    shard.Ports
	epoll int
	ports []*loopPort // by number; nil: free
	log   *slog.Logger
	clock func() int64

	paused timer.Wheel[*loopPort] // until they may be read again
	rest   bool                   // what was read last is perhaps not all that waits

	events [portReady]unix.EpollEvent
	arena  []byte
	in     []gateway.PortInput
}

// Device is a port as the set reads it.
type Device interface {
	gateway.Port
	FD() int // readable when there is a frame
	Remove() error
	Close() error
}

// tapPort is a TAP as a port.
type tapPort struct{ *tap.Function }

func (p tapPort) Read(b []byte) (int, gateway.Offload, error) {
	n, off, err := p.Function.Read(b)
	return n, gateway.Offload(off), err
}

func (p tapPort) Write(parts [][]byte, off gateway.Offload) bool {
	return p.Function.Write(parts, tap.Offload(off))
}

func (p tapPort) Stats() gateway.PortStats {
	st := p.Function.Stats()
	return gateway.PortStats{
		RxFrames: st.RxFrames, RxBytes: st.RxBytes, RxDropped: st.RxDropped,
		TxFrames: st.TxFrames, TxBytes: st.TxBytes, TxDropped: st.TxDropped,
	}
}

// loopPort is one port: its device, and what the shard knows of it.
type loopPort struct {
	dev    Device
	port   *shard.Port
	number int32
	paused timer.Handle // armed: nothing is read until then, the function has sent what it may
}

// Open makes the devices of all ports that the configuration has.
func Open(of shard.Ports, keeper tap.Keeper, clock func() int64, log *slog.Logger) (_ *Set, err error) {
	ps, err := newSet(of, clock, log)
	if err != nil {
		return nil, err
	}
	for _, p := range of.All() {
		dev, err := OpenDevice(p.Config, keeper)
		if err == nil {
			err = ps.Add(p, dev)
		}
		if err != nil {
			ps.Close()
			return nil, fmt.Errorf("port of %s: %w", p.ID, err)
		}
	}
	if len(of.All()) > 0 {
		of.Sync() // now they have devices
	}
	return ps, nil
}

func newSet(of shard.Ports, clock func() int64, log *slog.Logger) (*Set, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Set{of: of, epoll: epoll, log: log, clock: clock, arena: make([]byte, portArena), in: make([]gateway.PortInput, 0, portBatch)}, nil
}

// Add gives a port its device, which is the set's from then on.
func (ps *Set) Add(p *shard.Port, dev Device) error {
	i := slices.Index(ps.ports, nil)
	if i < 0 {
		i = len(ps.ports)
		ps.ports = append(ps.ports, nil)
	}
	l := &loopPort{dev: dev, port: p, number: int32(i)}
	ps.ports[i] = l
	p.Port = dev
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
	if err := unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_ADD, dev.FD(), &e); err != nil {
		return fmt.Errorf("port %s: epoll: %w", p.Name, err)
	}
	return nil
}

// Remove takes a port out and returns its device, which is the caller's to close; nil: it has none.
func (ps *Set) Remove(p *shard.Port) Device {
	i := slices.IndexFunc(ps.ports, func(l *loopPort) bool { return l != nil && l.port == p })
	if i < 0 {
		return nil
	}
	l := ps.ports[i]
	ps.paused.Stop(&l.paused)
	if !p.Lost {
		_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_DEL, l.dev.FD(), nil)
	}
	ps.ports[i] = nil
	p.Lost, p.Port = true, nil // frames under way for it are dropped and counted
	return l.dev
}

// OpenDevice makes the device of a port as it is configured.
func OpenDevice(c *config.Port, keeper tap.Keeper) (Device, error) {
	fc := tap.FunctionConfig{Name: c.Name, MAC: c.MAC, MTU: c.MTU, Bridge: c.Bridge, Netns: c.Netns, Persist: c.Persist, Keeper: keeper}
	if c.Mode == config.PortDirect {
		// What the kernel's TCP sends at once then makes one superframe, and not a second one of
		// the rest. Frames that others made are not to be cut for it.
		fc.Segs = max(2, superframePayload/(c.MTU+sealedAdds))
	}
	f, err := tap.OpenFunction(fc)
	if err != nil {
		return nil, err
	}
	return tapPort{f}, nil
}

const (
	superframePayload = 65535 - 40 - 8
	sealedAdds        = security.PlainOverhead
)

// FD implements thread.Ports.
func (ps *Set) FD() int {
	if len(ps.ports) == 0 || ps.of.Busy() {
		return -1
	}
	return ps.epoll
}

// Read implements thread.Ports.
func (ps *Set) Read() []gateway.PortInput {
	if len(ps.ports) == 0 || ps.of.Busy() {
		return nil
	}
	if ps.paused.Deadline() != vtime.Never {
		ps.resume(ps.clock())
	}
	ps.rest = false
	n := tap.Ready(ps.epoll, ps.events[:])
	if n == 0 {
		return nil
	}
	now := ps.clock()
	ps.in = ps.in[:0]
	room := ps.arena
	for _, e := range ps.events[:n] {
		p := ps.ports[e.Fd]
		if p.port.Rate != nil && p.port.Rate.Ready(now) > now {
			ps.pause(p, p.port.Rate.Ready(now))
			continue
		}
		for total := 0; total < portBurst/n && len(ps.in) < portBatch && len(room) >= tap.FunctionBuffer; {
			size, off, err := p.dev.Read(room[:tap.FunctionBuffer])
			if err != nil {
				ps.fail(p, err)
				break
			}
			if size == 0 {
				break
			}
			ps.rest = ps.rest || total+size >= portBurst/n
			ps.in = append(ps.in, gateway.PortInput{From: p.port.Endpoint, Frame: room[:size:size], Offload: off})
			room = room[size:]
			total += size
			if p.port.Rate != nil {
				p.port.Rate.Charge(size)
			}
		}
	}
	return ps.in
}

// More implements thread.Ports.
func (ps *Set) More() bool { return ps.rest && ps.of.Patient() }

// pause stops reading a port until a time: its guest's frames wait, and then are dropped, in front
// of it.
func (ps *Set) pause(p *loopPort, until int64) {
	ps.paused.Arm(&p.paused, p, 0, until)
	ps.listen(p, 0)
}

func (ps *Set) resume(now int64) {
	for p, _, due := ps.paused.Expire(now); due; p, _, due = ps.paused.Expire(now) {
		ps.listen(p, unix.EPOLLIN)
	}
}

func (ps *Set) listen(p *loopPort, events uint32) {
	e := unix.EpollEvent{Events: events, Fd: p.number}
	_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_MOD, p.dev.FD(), &e) // fails for a Device that is gone, which nobody reads
}

// Deadline implements thread.Ports.
func (ps *Set) Deadline() int64 { return ps.paused.Deadline() }

// fail takes a port out whose Device is gone; everything else goes on.
func (ps *Set) fail(p *loopPort, err error) {
	if p.port.Lost {
		return
	}
	_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_DEL, p.dev.FD(), nil)
	ps.log.Error("port lost: `vnic vf set` its port, or restart the NIC, to have it again", "port", p.port.Describe(), "err", err)
	ps.of.Lost(ps.clock(), p.port)
}

// Write implements thread.Ports.
func (ps *Set) Write() { ps.of.Deliver() }

// Close removes the devices.
func (ps *Set) Close() {
	for _, p := range ps.ports {
		if p == nil {
			continue
		}
		if err := p.dev.Close(); err != nil && ps.log != nil {
			ps.log.Error("port not closed", "err", err)
		}
	}
	_ = unix.Close(ps.epoll)
}

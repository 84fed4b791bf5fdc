package ports

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Limits of what is read from the ports in one turn.
const (
	portBurst = 240_000                        // cost, in bytes: about four GSO frames, which are still in the processor's cache when they are sealed
	portArena = portBurst + tap.FunctionBuffer // no frame costs less than its size, so there is a whole buffer for the last
	portBatch = 64                             // frames
	portReady = 16                             // ports that signalled, and as many that are polled
	portLooks = 4 * portReady                  // ports read, with or without frames
)

// Cost of a frame in the turn and in its port's share, beside its bytes.
const (
	portQuantum = portBurst / 4         // cost per port before the next one gets its turn
	frameCost   = portBurst / portBatch // least cost of a frame
	packetCost  = portBurst / 96        // least cost of each packet to be cut from a frame: each is sealed
)

// costOf returns the cost of a frame of size bytes.
func costOf(size int, off *gateway.Offload) int {
	cost := max(size, frameCost)
	if off.Size > 0 {
		cost = max(cost, (size/int(off.Size)+1)*packetCost)
	}
	return cost
}

// Set reads and writes the ports of a shard's functions for its thread. All devices are in one
// epoll instance, so that a turn makes one system call for any number of ports, and an idle port
// costs nothing. Ports with frames share a turn by the cost of reading and sending those (package
// fair): a port that has frames left stays in the round, and the next turn continues with the next
// port. It implements thread.Ports.
type Set struct {
	of    shard.Ports
	epoll int
	ports []*servedPort // by number; nil: free
	log   *slog.Logger
	clock func() int64

	polled polledPorts
	paused timer.Wheel[*servedPort] // ports that may not be read before a time
	round  fair.Round[servedPort]   // ports that may have frames
	rest   int                      // number of ports that were not read to the end

	events [portReady]unix.EpollEvent
	looks  [portReady]*servedPort
	had    []*servedPort // ports with frames in this turn
	arena  []byte
	in     []gateway.PortInput
}

// Open opens the devices of all configured ports.
func Open(of shard.Ports, from Sources, clock func() int64, log *slog.Logger) (_ *Set, err error) {
	ps, err := newSet(of, clock, log)
	if err != nil {
		return nil, err
	}
	for p := range of.All() {
		dev, err := from.Open(of, p.Config)
		if err == nil {
			err = ps.Add(p, dev)
		}
		if err != nil {
			ps.Close()
			return nil, fmt.Errorf("port of %s: %w", p.ID, err)
		}
	}
	of.Sync() // now that they have devices
	return ps, nil
}

func newSet(of shard.Ports, clock func() int64, log *slog.Logger) (*Set, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Set{
		of: of, epoll: epoll, log: log, clock: clock, round: fair.Round[servedPort]{Quantum: portQuantum},
		arena: make([]byte, portArena), in: make([]gateway.PortInput, 0, portBatch),
	}, nil
}

// Add gives a port its device, which belongs to the set from then on.
func (ps *Set) Add(p *shard.Port, dev Device) error {
	i := slices.Index(ps.ports, nil)
	if i < 0 {
		i = len(ps.ports)
		ps.ports = append(ps.ports, nil)
	}
	l := &servedPort{dev: dev, port: p, number: int32(i)}
	ps.ports[i] = l
	p.Device = dev
	if polled, ok := dev.(Polled); ok {
		l.polled = polled
		p.Device = noted{polled, l, &ps.polled}
	}
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
	if err := unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_ADD, dev.FD(), &e); err != nil {
		return fmt.Errorf("port %s: epoll: %w", p.Name, err)
	}
	return nil
}

// Remove removes a port and returns its device, which the caller has to close; nil: it has none.
func (ps *Set) Remove(p *shard.Port) Device {
	i := slices.IndexFunc(ps.ports, func(l *servedPort) bool { return l != nil && l.port == p })
	if i < 0 {
		return nil
	}
	l := ps.ports[i]
	ps.paused.Stop(&l.paused)
	ps.leave(l)
	ps.polled.leave(l)
	if !p.Lost {
		_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_DEL, l.dev.FD(), nil)
	}
	ps.ports[i] = nil
	p.Lost, p.Device = true, nil // frames under way to it are dropped and counted
	return l.dev
}

// FD implements thread.Ports.
func (ps *Set) FD() int {
	if len(ps.ports) == 0 || ps.of.Busy() {
		return -1
	}
	return ps.epoll
}

// Read implements thread.Ports.
func (ps *Set) Read() (some bool) {
	if len(ps.ports) == 0 || ps.of.Busy() {
		return false
	}
	if ps.paused.Deadline() != vtime.Never {
		ps.resume(ps.clock())
	}
	ps.look()
	if ps.round.Empty() {
		return false
	}
	now := ps.clock()
	ps.in = ps.in[:0]
	room, spent := ps.arena, 0
	for range portLooks {
		p := ps.round.Next()
		if p == nil || spent >= portBurst || len(ps.in) == portBatch {
			break
		}
		if p.port.Rate != nil && p.port.Rate.Ready(now) > now {
			ps.pause(p, p.port.Rate.Ready(now))
			continue
		}
		more := true
		for more && p.flow.Left() && spent < portBurst && len(ps.in) < portBatch {
			size, cost := ps.readFrame(p, room)
			room = room[size:]
			spent += cost
			more = size > 0
		}
		if !more && !p.had && p.polled != nil {
			ps.polled.looked(p, false)
		}
		ps.settle(p, more)
	}
	for _, p := range ps.had {
		p.had = false
		if p.polled != nil {
			ps.polled.looked(p, true)
		}
	}
	ps.had = ps.had[:0]
	ps.of.Take(ps.in)
	return len(ps.in) > 0
}

// readFrame reads the next frame of a port into room, and charges its cost. size is 0 if there is
// none.
func (ps *Set) readFrame(p *servedPort, room []byte) (size, cost int) {
	size, rest, off, err := p.dev.Read(room[:tap.FunctionBuffer])
	switch {
	case err != nil:
		ps.fail(p, err)
		return 0, 0
	case size == 0:
		return 0, 0
	}
	frame := room[:size]
	if rest != nil {
		size += rest.Len()
		ps.polled.owe(p)
	}
	cost = costOf(size, &off)
	p.flow.Charge(cost)
	if p.port.Rate != nil {
		p.port.Rate.Charge(size)
	}
	if !p.had {
		p.had = true
		ps.had = append(ps.had, p)
	}
	ps.in = append(ps.in, gateway.PortInput{From: p.port.Endpoint, Frame: frame[:len(frame):size], Rest: rest, Offload: off})
	return size, cost
}

// settle ends a port's turn in the round. more means that it was not read to the end.
func (ps *Set) settle(p *servedPort, more bool) {
	if p.more != more {
		p.more = more
		if more {
			ps.rest++
		} else {
			ps.rest--
		}
	}
	if p.flow.Waits() { // false if it was paused or lost
		ps.round.Settle(&p.flow, more, false)
	}
}

// leave removes a port from the round.
func (ps *Set) leave(p *servedPort) {
	p.flow.Leave()
	ps.settle(p, false)
}

// look puts the ports that may have frames into the round: those that signalled, and some of those
// that are polled, in turn.
func (ps *Set) look() {
	for _, e := range ps.events[:tap.Ready(ps.epoll, ps.events[:])] {
		p := ps.ports[e.Fd]
		if p.polled != nil {
			ps.polled.startPolling(p)
			continue
		}
		ps.round.Enter(&p.flow, p, false)
	}
	for _, p := range ps.looks[:ps.polled.turns(ps.looks[:])] {
		ps.round.Enter(&p.flow, p, false)
	}
}

// Arm implements thread.Ports.
func (ps *Set) Arm() (waiting bool) {
	return !ps.of.Busy() && ps.polled.arm()
}

// More implements thread.Ports.
func (ps *Set) More() bool { return ps.rest > 0 && ps.of.MayWait() }

// pause stops reading a port until a time. Meanwhile its guest's frames wait in front of it, and
// then are dropped there.
func (ps *Set) pause(p *servedPort, until int64) {
	ps.paused.Arm(&p.paused, p, 0, until)
	ps.listen(p, 0)
	ps.leave(p)
	ps.polled.stopPolling(p)
}

func (ps *Set) resume(now int64) {
	for p, _, due := ps.paused.Expire(now); due; p, _, due = ps.paused.Expire(now) {
		ps.listen(p, unix.EPOLLIN)
		if p.polled != nil { // it was not asked to signal
			ps.polled.startPolling(p)
		}
	}
}

func (ps *Set) listen(p *servedPort, events uint32) {
	e := unix.EpollEvent{Events: events, Fd: p.number}
	_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_MOD, p.dev.FD(), &e) // fails for a device that is gone, which is not read anyway
}

// Deadline implements thread.Ports.
func (ps *Set) Deadline() int64 { return ps.paused.Deadline() }

// fail takes a port whose device is gone out of service; everything else goes on.
func (ps *Set) fail(p *servedPort, err error) {
	if p.port.Lost {
		return
	}
	_ = unix.EpollCtl(ps.epoll, unix.EPOLL_CTL_DEL, p.dev.FD(), nil)
	ps.leave(p)
	ps.log.Error("port lost: `vnic vf set` its port, or restart the NIC, to have it again", "port", p.port.Describe(), "err", err)
	ps.of.Lost(ps.clock(), p.port)
}

// Write implements thread.Ports.
func (ps *Set) Write() {
	ps.of.Deliver()
	ps.polled.settle()
}

// Serve starts serving the guests of all ports.
func (ps *Set) Serve() {
	for _, p := range ps.ports {
		if p != nil {
			p.dev.Serve()
		}
	}
}

// Close removes the devices.
func (ps *Set) Close() {
	for _, p := range ps.ports {
		if p == nil {
			continue
		}
		if err := p.dev.Close(); err != nil {
			ps.log.Error("port not closed", "err", err)
		}
	}
	_ = unix.Close(ps.epoll)
}

// Fit closes the devices of ports that functions' settings no longer name and opens those that they
// name now. It does so outside the shard's thread, since the kernel takes its time. do runs a
// function on the shard's thread; failed is called for each function that could not get its port.
func (ps *Set) Fit(from Sources, do func(func(falcon.Time)) error, failed func(pfvf.ID, error)) error {
	var gone []Device
	var come []*shard.Port
	err := do(func(falcon.Time) {
		come = ps.of.Change(func(p *shard.Port) {
			if dev := ps.Remove(p); dev != nil {
				gone = append(gone, dev)
			}
		})
	})
	for _, dev := range gone {
		err = errors.Join(err, dev.Remove())
	}
	for _, p := range come {
		dev, e := from.Open(ps.of, p.Config)
		if e == nil {
			stopped := do(func(now falcon.Time) {
				e = ps.of.Add(p, func() error { return ps.Add(p, dev) }, func() { ps.Remove(p) })
			})
			if e = errors.Join(stopped, e); e != nil {
				e = errors.Join(e, dev.Remove())
			} else {
				dev.Serve()
			}
		}
		if e != nil {
			failed(p.ID, e)
		}
	}
	return err
}

package device

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/tap"
)

// Tuning of the shard's thread.
const (
	rxBatch     = 64          // frames read at once
	rxSuper     = 16          // the same where they may be superframes: as many packets, and no more memory than the cache holds
	spinTurns   = 16          // turns without work before the thread lets others run between turns
	bulk        = 16_000      // bytes read from the uplink in a turn after which the thread does not look for more
	uplinkRetry = 100_000     // ns until a full uplink is tried again
	uplinkPause = 10_000_000  // ns until a broken one is
	maxPark     = 500_000_000 // ns; a thread with nothing to do looks round this often
)

// loop is the thread around a shard: it reads the uplink, steps the shard, writes what came out,
// and sleeps in ppoll when there is nothing to do, where the bells of guests wake it themselves.
// Go's timers and poller are too coarse for it. Between work and sleep it looks for more, in
// frames, inbox and the rings in guest memory: spinning, then yielding, for as long as spin says;
// but not behind much that came from the uplink, whose sender waits for nothing and has more by the
// time a sleeper is woken. Before it sleeps the rings are armed, so that a driver's doorbell record
// wakes it.
type loop struct {
	shard *Shard
	port  tap.Port
	clock func() int64
	send  func(host uint8, msg []byte) // to another NIC's connection manager; must not block
	log   *slog.Logger
	pulse Pulse

	park *parker
	stop atomic.Bool
	rx   [][]byte
	got  []tap.Received
	came int // bytes, in the last turn
	kept int // frames that the uplink did not take, or that wait for more
	in   Input
	out  Output
	spin spin

	ports *portSet // of functions; nil: there are none

	impair [directions]impaired

	readErr, writeErr bool // reported once, until it works again
}

func newLoop(s *Shard, port tap.Port, clock func() int64, send func(uint8, []byte), log *slog.Logger) (*loop, error) {
	p, err := newParker()
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", s.index, err)
	}
	l := &loop{shard: s, port: port, clock: clock, send: send, log: log, pulse: noPulse{}, park: p, impair: newImpaired(port.MTU(), &s.cfg.Uplink.Impair)}
	if runtime.NumCPU() > 1 {
		l.spin.most = int64(*s.cfg.NIC.Spin)
	}
	size, batch := tap.BufferSize(port), rxBatch
	if port.Capabilities().USO {
		batch = rxSuper
	}
	store := make([]byte, batch*size)
	for i := range batch {
		l.rx = append(l.rx, store[i*size:(i+1)*size:(i+1)*size])
	}
	l.in.Frames, l.in.Segments = make([][]byte, 0, batch), make([]int, 0, batch)
	l.got = make([]tap.Received, batch)
	s.inbox.WakeBy(p.wake)
	s.bells.Wait = p.listen
	return l, nil
}

// run works until halt. It gives its OS thread to the shard.
func (l *loop) run() {
	reserveProcessor(1)
	defer reserveProcessor(-1)
	runtime.LockOSThread() // never unlocked: the thread has another timer slack and ends with the goroutine
	debug.SetPanicOnFault(true)
	setTimerSlack()
	if cpu := l.shard.cfg.NIC.CPU; cpu != nil {
		free, err := keepToProcessor(*cpu)
		if err != nil { // it was there when the NIC was made
			l.log.Warn("the shard runs on any processor", "nic.cpu", *cpu, "err", err)
		} else {
			defer free()
		}
	}
	defer l.park.close()
	defer func() { l.ports.close() }() // those of that moment
	l.pulse.Begin()
	defer l.pulse.End()
	idle, turns, until, came := false, 0, int64(0), 0
	for !l.stop.Load() {
		l.pulse.Turn()
		if l.turn() {
			idle, came = false, l.came
			continue
		}
		now := l.clock()
		if !idle {
			idle, turns, until = true, 0, now+l.spin.length
			if came >= bulk {
				until = now
			}
		}
		if now < until {
			if turns++; turns <= spinTurns {
				continue
			}
			yieldThread()
			if after := l.clock(); l.spin.yielded(after, after-now) {
				continue
			}
		}
		idle = !l.sleep(now) // woken by time alone there is nothing to look for
	}
}

// turn reads, steps and writes once. It reports whether there was work.
func (l *loop) turn() bool {
	l.read()
	now := l.clock() // when the frames came: Falcon's t2 and t4 must not count what is done before them (§10.1)
	l.in.FromPorts = l.ports.read(l.shard)
	l.shard.Step(now, &l.in, &l.out)
	l.out.Guests.Do()
	l.out.Effects.Do()
	l.ports.write(l.shard)
	worked := len(l.in.Frames) > 0 || len(l.in.FromPorts) > 0 || l.out.More || l.out.Worked
	for _, m := range l.out.PeerMessages {
		l.send(m.Host, m.Data)
	}
	return l.write(l.ports.more(l.shard)) || worked
}

// read takes what the uplink has.
func (l *loop) read() {
	n, err := l.port.Read(l.rx, l.got)
	l.report(&l.readErr, "read", err)
	l.in.Frames, l.in.Segments, l.came = l.in.Frames[:0], l.in.Segments[:0], 0
	for i, r := range l.got[:n] {
		l.came += r.Len
		l.in.Frames = append(l.in.Frames, l.rx[i][:r.Len])
		l.in.Segments = append(l.in.Segments, r.Segment)
	}
	if l.impair[directionRx].on {
		l.impairRx()
	}
}

// write offers what waits to the uplink and reports whether it took any. With
// more to come at once a superframe that is not full waits for it, a turn.
func (l *loop) write(more bool) bool {
	tx := l.waiting()
	if d := &l.impair[directionTx]; d.on {
		defer d.settle()
		l.impairTx()
		more = false
	}
	pending := tx.pending()
	if len(pending) == 0 {
		return false
	}
	taken, err := l.port.Write(pending, more && len(pending) > l.kept)
	l.report(&l.writeErr, "write", err)
	tx.taken(taken)
	l.kept = len(pending) - taken
	return taken > 0
}

// waiting is where frames wait for the uplink.
func (l *loop) waiting() *txQueue {
	if d := &l.impair[directionTx]; d.on {
		return d.out
	}
	return l.shard.tx
}

// sleep waits for the uplink, the inbox or the shard's next deadline. It
// reports false when time alone ended it.
func (l *loop) sleep(now int64) (input bool) {
	l.shard.Flush(now, &l.out)
	l.out.Guests.Do()
	l.out.Effects.Do()
	l.ports.write(l.shard)
	full := l.waiting().slot() == nil
	if took := l.write(false); l.out.More || full && took {
		return true // a full queue may have stopped the shard
	}
	deadline, fd := min(l.out.Deadline, now+maxPark), l.port.FD()
	deadline = min(deadline, l.impair[directionRx].deadline(), l.impair[directionTx].deadline())
	deadline = min(deadline, l.ports.deadline())
	if len(l.waiting().pending()) > 0 && !l.writeErr {
		deadline = min(deadline, now+uplinkRetry)
	}
	if l.readErr || l.writeErr {
		deadline = min(deadline, now+uplinkPause)
	}
	if l.readErr {
		fd = -1 // always readable now: it would be a busy loop
	}
	if deadline <= now {
		return false
	}
	inbox := &l.shard.inbox
	defer inbox.Unpark()
	if !inbox.Park() || l.stop.Load() {
		l.spin.learn(now, true, 0)
		return true
	}
	input = l.park.wait(fd, l.ports.fd(l.shard), deadline-now, !l.shard.roused.Swap(false))
	for _, fd := range l.park.rung {
		l.shard.bells.Rang(fd)
	}
	after := l.clock()
	l.spin.learn(after, input, after-now)
	return input
}

// halt makes run return soon.
func (l *loop) halt() {
	l.stop.Store(true)
	l.park.wake()
}

func (l *loop) report(flag *bool, op string, err error) {
	if err == nil {
		*flag = false
		return
	}
	l.shard.drops.count(dropUplinkError)
	if !*flag {
		*flag = true
		l.log.Error("uplink", "op", op, "port", l.port.Name(), "err", err)
	}
}

var processors sync.Mutex

// reserveProcessor gives the Go scheduler one more processor (or takes it
// back) for a shard's thread: while it works or sits in ppoll it holds one,
// and sessions must not wait for it.
func reserveProcessor(n int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

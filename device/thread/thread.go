package thread

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Shard is stepped by a thread. Its methods read no clock and do no I/O.
type Shard interface {
	// Step does all work that is due at one moment.
	Step(now vtime.Time, in *Input, out *Output)
	// Flush is called before the thread waits: delayed output is sent now, and polled rings are
	// armed to wake the thread. If out.More is set, the thread must not wait.
	Flush(now vtime.Time, out *Output)
	// Park records that the thread is about to sleep, and guards that against input from other
	// goroutines; false: it must not sleep.
	Park() bool
	// Unpark records that the thread is awake.
	Unpark()
	// Woke reports whether a goroutine was made runnable since the last call.
	Woke() bool
}

// Input is the input of a Step.
type Input struct {
	Frames   [][]byte // received from the uplink, each cut to its length; opened in place
	Segments []int    // tap.Received.Segment of each frame; nil: there are no superframes among them

	Rung []int // eventfds of guests that rang
}

// Output is the result of a Step, beside the frames in the uplink's queue and the events in the
// drivers' channels.
type Output struct {
	Effects  effect.List // to be run before the next Step
	Deadline vtime.Time  // latest time of the next Step
	Worked   bool        // there was work: from a ring, the inbox, another shard, TCP, or frames that ports had sent before
	More     bool        // Step again at once: work is left
}

// Do runs the effects of a Step.
func (o *Output) Do() { o.Effects.Do() }

// Ports serves the functions' ports for the thread.
type Ports interface {
	// Read gives the shard the frames that the ports have, if the shard is done with those it got
	// before, and reports whether there were any.
	Read() (some bool)
	// Write gives the ports the frames that the shard has for them.
	Write()
	// More reports whether more frames of ports follow at once, while the last frame in the
	// uplink's queue is also one of a port.
	More() bool
	// Arm is called before the thread waits: it asks polled ports to signal their next frame. If a
	// frame already waits, it returns true and the thread must not wait.
	Arm() (waiting bool)
	// FD returns a descriptor, readable when a port has a frame; -1 while none is to be read.
	FD() int
	// Deadline returns when a paused port may be read again.
	Deadline() vtime.Time
}

// Tuning of the thread.
const (
	Batch       = 64          // most frames read at once
	rxSuper     = 16          // the same where they may be superframes: those hold as many packets, and the memory should fit the cache
	spinTurns   = 16          // turns without work before the thread lets others run between turns
	bulk        = 16_000      // bytes read from the uplink in a turn after which the thread does not look for more
	uplinkRetry = 100_000     // ns until a full uplink is tried again
	uplinkPause = 10_000_000  // ns until a broken uplink is tried again
	maxPark     = 500_000_000 // ns; an idle thread wakes up this often

	// heldSleep is how long after its last work a sleeping thread keeps its processor of Go's
	// scheduler, ns. A thread that lost it gets another one when it wakes up; but then sysmon wakes
	// up too, and soon interrupts the thread, since that processor has not switched goroutines for
	// so long: together that costs 100 µs. A thread that keeps its processor is interrupted every
	// 10 ms.
	heldSleep = 100_000_000
)

// Pulse watches a thread. Turn is called at least every maxPark while it runs.
type Pulse interface {
	Begin()
	Turn()
	End()
}

// noPulse is for a thread that is not watched.
type noPulse struct{}

func (noPulse) Begin() {}

func (noPulse) Turn() {}

func (noPulse) End() {}

// Config holds what a thread needs.
type Config struct {
	Shard  Shard
	Uplink tap.Uplink
	Queue  *tap.Queue // frames that the shard made for the uplink
	Ports  Ports
	Impair config.Impair

	Clock func() int64
	Spin  int64 // the longest search for more work before a sleep, ns
	CPU   *int  // the processor that the thread is pinned to; nil: any
	Pulse Pulse // nil: not watched
	Log   *slog.Logger
}

// Thread runs one shard. Make it with New, Run it once, then Close it.
type Thread struct {
	Config
	park *parker
	stop atomic.Bool
	rx   [][]byte
	got  []tap.Received
	came int // bytes read in the last turn
	kept int // frames that the uplink did not take, or that wait for more
	in   Input
	out  Output
	spin spin
	busy int64 // time of the last work

	yield func() // lets other threads run on this processor

	impair [Directions]impaired

	errors            uint64 // errors of the uplink
	readErr, writeErr bool   // an error was logged; not again until it has worked
}

// New returns a thread that does not run yet.
func New(c Config) (*Thread, error) {
	p, err := newParker()
	if err != nil {
		return nil, err
	}
	if c.Pulse == nil {
		c.Pulse = noPulse{}
	}
	t := &Thread{Config: c, park: p, yield: yieldThread, impair: newImpaired(c.Uplink.MTU(), &c.Impair)}
	if runtime.NumCPU() > 1 {
		t.spin.most = c.Spin
	}
	size, batch := tap.BufferSize(c.Uplink), Batch
	if c.Uplink.Capabilities().USO {
		batch = rxSuper
	}
	store := make([]byte, batch*size)
	for i := range batch {
		t.rx = append(t.rx, store[i*size:(i+1)*size:(i+1)*size])
	}
	t.in.Frames, t.in.Segments = make([][]byte, 0, batch), make([]int, 0, batch)
	t.got = make([]tap.Received, batch)
	return t, nil
}

// Run works until Halt. It locks its OS thread for the shard.
func (t *Thread) Run() {
	reserveProcessor(1)
	defer reserveProcessor(-1)
	runtime.LockOSThread() // never unlocked: the thread has another timer slack and ends with the goroutine
	debug.SetPanicOnFault(true)
	setTimerSlack()
	ShortSlices()
	if cpu := t.CPU; cpu != nil {
		free, err := keepToProcessor(*cpu)
		if err != nil { // the processor was available when the NIC was created
			t.Log.Warn("the shard runs on any processor", "nic.cpu", *cpu, "err", err)
		} else {
			defer free()
		}
	}
	t.Pulse.Begin()
	defer t.Pulse.End()
	idle, turns, until, came, yielded := false, 0, int64(0), 0, false
	for !t.stop.Load() {
		t.Pulse.Turn()
		if t.Turn() {
			idle, came = false, t.came
			continue
		}
		now := t.Clock()
		if !idle {
			idle, turns, until, t.busy, yielded = true, 0, now+t.spin.length(), now, false
			if came >= bulk { // the sender waits for nothing, and has more by the time a sleeper is woken
				until = now
			}
		}
		if now < until {
			if turns++; turns <= spinTurns {
				continue
			}
			t.yield()
			if after := t.Clock(); t.spin.yielded(after, after-now) {
				continue
			}
		}
		if !yielded {
			yielded = true
			if t.othersRan(now) {
				continue
			}
		}
		idle = !t.Sleep(now) // after a timeout there is nothing to look for
	}
}

// othersRan lets other threads run on this processor, unless they needed it for long lately, and
// reports whether any did. One of them may be a guest or another NIC, which this thread would wait
// for: then there is work now, and nobody had to wake this thread. In that way two busy NICs on one
// processor need an eighth less of its time.
func (t *Thread) othersRan(now int64) bool {
	if now < t.spin.until {
		return false
	}
	t.yield()
	after := t.Clock()
	t.spin.yielded(after, after-now)
	return after-now >= shared
}

// Turn reads, steps and writes once. It reports whether there was work.
func (t *Thread) Turn() bool {
	t.read()
	now := t.Clock() // arrival time of the frames: Falcon's t2 and t4 must not include the work before them (§10.1)
	fromPorts := t.Ports.Read()
	t.Shard.Step(now, &t.in, &t.out)
	t.in.Rung = t.in.Rung[:0]
	t.out.Do()
	t.Ports.Write()
	worked := len(t.in.Frames) > 0 || fromPorts || t.out.More || t.out.Worked
	if worked {
		t.spin.last = tookWork
	}
	if t.write(t.Ports.More()) {
		t.spin.last = sentOut
		return true
	}
	return worked
}

// read reads frames from the uplink.
func (t *Thread) read() {
	n, err := t.Uplink.Read(t.rx, t.got)
	t.report(&t.readErr, "read", err)
	t.in.Frames, t.in.Segments, t.came = t.in.Frames[:0], t.in.Segments[:0], 0
	for i, r := range t.got[:n] {
		t.came += r.Len
		t.in.Frames = append(t.in.Frames, t.rx[i][:r.Len])
		t.in.Segments = append(t.in.Segments, r.Segment)
	}
	if t.impair[RX].on {
		t.impairRx()
	}
}

// write passes waiting frames to the uplink and reports whether it took any. With more, a
// superframe that is not full waits for one turn for further frames.
func (t *Thread) write(more bool) bool {
	tx := t.waiting()
	if d := &t.impair[TX]; d.on {
		defer d.settle()
		t.impairTx()
		more = false
	}
	pending := tx.Pending()
	if len(pending) == 0 {
		return false
	}
	taken, err := t.Uplink.Write(pending, more && len(pending) > t.kept)
	t.report(&t.writeErr, "write", err)
	tx.Taken(taken)
	t.kept = len(pending) - taken
	return taken > 0
}

// waiting returns the queue in which frames wait for the uplink.
func (t *Thread) waiting() *tap.Queue {
	if d := &t.impair[TX]; d.on {
		return d.out
	}
	return t.Queue
}

// Sleep waits for the uplink, the ports, the guests, and the shard's input or next deadline. It
// returns false if only a timeout ended it.
func (t *Thread) Sleep(now int64) (input bool) {
	t.Shard.Flush(now, &t.out)
	t.out.Do()
	t.Ports.Write()
	full := t.waiting().Slot() == nil
	if took := t.write(false); t.out.More || full && took {
		return true // the full queue may have stopped the shard
	}
	deadline, fd := t.deadline(now), t.Uplink.FD()
	if t.readErr {
		fd = -1 // always readable now: it would be a busy loop
	}
	if deadline <= now {
		return false
	}
	if t.Ports.Arm() {
		return true
	}
	defer t.Shard.Unpark()
	if !t.Shard.Park() || t.stop.Load() {
		t.spin.learn(now, true, 0)
		return true
	}
	held := t.busy + heldSleep - now
	if t.Shard.Woke() { // a goroutine may wait for the processor of Go's scheduler that this thread holds
		held = 0
	}
	input = t.park.wait(fd, t.Ports.FD(), deadline-now, held)
	t.in.Rung = append(t.in.Rung, t.park.rung...)
	after := t.Clock()
	t.spin.learn(after, input, after-now)
	return input
}

// deadline returns the latest time at which there is something to do.
func (t *Thread) deadline(now int64) int64 {
	at := min(t.out.Deadline, now+maxPark, t.impair[RX].deadline(), t.impair[TX].deadline(), t.Ports.Deadline())
	if len(t.waiting().Pending()) > 0 && !t.writeErr {
		at = min(at, now+uplinkRetry)
	}
	if t.readErr || t.writeErr {
		at = min(at, now+uplinkPause)
	}
	return at
}

// Halt makes Run return soon.
func (t *Thread) Halt() {
	t.stop.Store(true)
	t.park.wake()
}

// Wake ends a sleep.
func (t *Thread) Wake() { t.park.wake() }

// Listen makes sleeps end when fd, an eventfd, is written to, or stops that.
func (t *Thread) Listen(fd int, on bool) error { return t.park.listen(fd, on) }

// Close closes the thread's descriptors. It is called when Run has ended or was never called.
func (t *Thread) Close() { t.park.close() }

// Errors returns the number of reads and writes that failed on the uplink.
func (t *Thread) Errors() uint64 { return t.errors }

func (t *Thread) report(flag *bool, op string, err error) {
	if err == nil {
		*flag = false
		return
	}
	t.errors++
	if !*flag {
		*flag = true
		t.Log.Error("uplink", "op", op, "port", t.Uplink.Name(), "err", err)
	}
}

var processors sync.Mutex

// reserveProcessor raises GOMAXPROCS by one for a shard's thread (or lowers it again): while the
// thread works or waits in ppoll it holds a processor of Go's scheduler, and sessions must not wait
// for that.
func reserveProcessor(n int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

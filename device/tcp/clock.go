package tcp

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// clock is the time of a netstack: that of the shard's last Step, in which its timers run.
type clock struct {
	mu     sync.Mutex // a goroutine of gVisor's may use it, too
	now    vtime.Time
	timers timer.Wheel[*alarm]
}

var _ tcpip.Clock = (*clock)(nil)

// alarm is a timer of gVisor's.
type alarm struct {
	c      *clock
	handle timer.Handle
	f      func()
}

// Now implements tcpip.Clock.
func (c *clock) Now() time.Time { return time.Unix(0, c.read()) }

// NowMonotonic implements tcpip.Clock. No two readings are the same: when a segment is acknowledged, gVisor
// takes segments behind it that were sent at the same time for lost (RACK, RFC 8985 §6.2, takes only those in
// front of it for lost).
func (c *clock) NowMonotonic() tcpip.MonotonicTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	return tcpip.MonotonicTime{}.Add(time.Duration(c.now))
}

// AfterFunc implements tcpip.Clock.
func (c *clock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	a := &alarm{c: c, f: f}
	a.Reset(d)
	return a
}

// Reset implements tcpip.Timer.
func (a *alarm) Reset(d time.Duration) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	at := vtime.Never // gVisor's timers begin with the longest time there is
	if d.Nanoseconds() < vtime.Never-a.c.now {
		at = a.c.now + max(0, d.Nanoseconds())
	}
	a.c.timers.Arm(&a.handle, a, 0, at)
}

// Stop implements tcpip.Timer.
func (a *alarm) Stop() bool {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	armed := a.handle.Armed()
	a.c.timers.Stop(&a.handle)
	return armed
}

func (c *clock) read() vtime.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) set(now vtime.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = max(c.now, now)
}

// next disarms a timer that is due, and returns what it does; nil if there is none.
func (c *clock) next() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, _, ok := c.timers.Expire(c.now); ok {
		return a.f
	}
	return nil
}

func (c *clock) deadline() vtime.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timers.Deadline()
}

package tunneltest_test

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// The search for the highest rate.
const (
	lossAllowed = 0.001
	trialTime   = 200 * time.Millisecond
	trials      = 12
	resolution  = 0.02
	trialBurst  = 32
	trialPause  = 20 * time.Microsecond // while less than a burst is due, or is taken
)

// load sends frames by one port, receives them at another and counts them.
type load interface {
	// send sends at most n frames, and returns how many there was room for.
	send(n int) int
	// take returns how many have arrived since.
	take() int
}

// ndr returns the highest rate, in frames per second, at which a trial loses almost nothing, found
// by the search of RFC 2544 §26.1. A trial that loses is repeated once, since others use the
// machine too.
func ndr(l load, most float64) float64 {
	low, high := 0.0, most
	for range trials {
		rate := (low + high) / 2
		got := trial(l, rate)
		if got.lost() > lossAllowed {
			got = trial(l, rate)
		}
		if got.lost() > lossAllowed {
			high = rate
		} else {
			low = max(low, got.offered())
			if got.offered() < 0.98*rate { // no more than that is taken
				high = rate
			}
		}
		if high-low < resolution*high {
			break
		}
	}
	return low
}

// counted is the result of a trial.
type counted struct {
	sent, got int
	took      time.Duration
}

func (c *counted) lost() float64    { return 1 - float64(c.got)/float64(max(c.sent, 1)) }
func (c *counted) offered() float64 { return float64(c.sent) / c.took.Seconds() }

// trial sends at a rate for a while and counts what arrives.
func trial(l load, rate float64) (c counted) {
	began := time.Now()
	for ; c.took < trialTime; c.took = time.Since(began) {
		due := int(rate*c.took.Seconds()) - c.sent
		sent := l.send(min(due, trialBurst))
		c.sent += sent
		c.got += l.take()
		if sent < trialBurst {
			pause(trialPause)
		}
	}
	for idle := time.Now(); time.Since(idle) < 20*time.Millisecond && c.got < c.sent; {
		if n := l.take(); n > 0 {
			c.got += n
			idle = time.Now()
		}
	}
	return c
}

// pause sleeps in the kernel, where the thread has no timer slack: a Go timer is less accurate.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}

// cost returns the processor time of all threads but the caller's per frame of a flood, in ns.
func cost(t testing.TB, l load) float64 {
	others := func() time.Duration {
		var all, own unix.Rusage
		if err := errors.Join(unix.Getrusage(unix.RUSAGE_SELF, &all), unix.Getrusage(unix.RUSAGE_THREAD, &own)); err != nil {
			t.Fatal(err)
		}
		return time.Duration(all.Utime.Nano() + all.Stime.Nano() - own.Utime.Nano() - own.Stime.Nano())
	}
	before := others()
	c := trial(l, 1e9)
	return float64(others()-before) / float64(max(c.got, 1))
}

// portLoad is load between two guests on ports of type vhost-user.
type portLoad struct {
	from, to *vnictest.PortGuest
	frame    []byte
}

func (s portLoad) send(n int) (sent int) {
	for sent < n && s.from.Guest.Post(0, vhosttest.Header{}, s.frame) {
		sent++
	}
	s.from.Guest.Notify(0)
	return sent
}

func (s portLoad) take() int { return s.to.Guest.Discard(0) }

// apart gives the calling goroutine a thread that has the second of this process's processors to
// itself, and returns its number; its other threads share the first.
func apart(t testing.TB) (cpu int) {
	t.Helper()
	cpus := own(t)
	if len(cpus) < 2 {
		t.Skip("one processor for the NIC and one for the guests are needed")
	}
	runtime.LockOSThread()
	place := func(mine, rest []int) {
		for _, id := range threads(t) {
			set := rest
			if id == unix.Gettid() {
				set = mine
			}
			var on unix.CPUSet
			for _, cpu := range set {
				on.Set(cpu)
			}
			_ = unix.SchedSetaffinity(id, &on) // it may have ended
		}
	}
	place(cpus[1:2], cpus[:1])
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	hurry(t)
	t.Cleanup(func() {
		place(cpus, cpus)
		runtime.UnlockOSThread()
	})
	return cpus[1]
}

// own returns the processors that this process may use.
func own(t testing.TB) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(set) * 8 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// hurry raises the priority of this process's autogroup until the benchmark ends, where the kernel
// schedules by autogroups (sched(7)).
func hurry(t testing.TB) {
	const file = "/proc/self/autogroup"
	before, err := os.ReadFile(file)
	if err != nil {
		return
	}
	_, nice, _ := strings.Cut(strings.TrimSpace(string(before)), "nice ")
	_ = os.WriteFile(file, []byte("-20"), 0) // an unprivileged user may not
	t.Cleanup(func() { _ = os.WriteFile(file, []byte(nice), 0) })
}

// threads lists the threads of this process.
func threads(t testing.TB) (ids []int) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range dir {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

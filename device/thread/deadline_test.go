package thread

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// failingUplink fails where it is told to.
type failingUplink struct {
	tap.Port
	full        bool
	read, write error
}

func (u *failingUplink) Read(bufs [][]byte, got []tap.Received) (int, error) {
	if u.read != nil {
		return 0, u.read
	}
	return u.Port.Read(bufs, got)
}

func (u *failingUplink) Write(frames [][]byte, more bool) (int, error) {
	if u.write != nil || u.full {
		return 0, u.write
	}
	return u.Port.Write(frames, more)
}

// pausedPorts are ports that may be read again at a given time.
type pausedPorts struct {
	*idle
	until vtime.Time
}

func (p *pausedPorts) Deadline() vtime.Time { return p.until }

// TestDeadline checks that a thread sleeps until the shard, a port or a delayed packet is due, and
// only a short time while a full or broken uplink has to be tried again.
func TestDeadline(t *testing.T) {
	l, _, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	var log bytes.Buffer
	shard, ports, up := &idle{vtime.Never}, &pausedPorts{until: vtime.Never}, &failingUplink{Port: l.Uplink}
	ports.idle = shard
	l.Shard, l.Ports, l.Uplink, l.Log = shard, ports, up, slog.New(slog.NewTextHandler(&log, nil))
	broken, errs := errors.New("broken"), uint64(0)
	for _, c := range []struct {
		name        string
		shard, port vtime.Time // from now; 0: nothing
		sends, full bool
		read, write error
		told        int // lines in the log so far
		want        vtime.Time
	}{
		{name: "nothing to do", want: maxPark},
		{name: "the shard", shard: 1000, port: 2000, want: 1000},
		{name: "a port", shard: 2000, port: 1000, want: 1000},
		{name: "an uplink that is full", sends: true, full: true, want: uplinkRetry},
		{name: "one that has room again", want: maxPark},
		{name: "no reads", read: broken, told: 1, want: uplinkPause},
		{name: "still none", read: broken, told: 1, want: uplinkPause},
		{name: "reads again", told: 1, want: maxPark},
		{name: "no writes", sends: true, write: broken, told: 2, want: uplinkPause},
		{name: "still none", write: broken, told: 2, want: uplinkPause},
		{name: "neither", read: broken, write: broken, told: 3, want: uplinkPause},
		{name: "neither, and the shard", shard: 1000, read: broken, write: broken, told: 3, want: 1000},
		{name: "full, no reads", full: true, read: broken, told: 3, want: uplinkRetry},
		{name: "all well", told: 3, want: maxPark},
	} {
		*now += 1e9
		shard.deadline, ports.until = vtime.Never, vtime.Never
		if c.shard != 0 {
			shard.deadline = *now + c.shard
		}
		if c.port != 0 {
			ports.until = *now + c.port
		}
		if c.sends {
			l.Queue.Commit(copy(l.Queue.Slot(), udpFrame(100)))
		}
		up.full, up.read, up.write = c.full, c.read, c.write
		for _, err := range []error{c.read, c.write} {
			if err != nil {
				errs++
			}
		}
		l.Turn()
		if got := l.deadline(*now) - *now; got != c.want {
			t.Errorf("%s: looks again in %d ns, want %d", c.name, got, c.want)
		}
		if n := bytes.Count(log.Bytes(), []byte("err=broken")); n != c.told || l.Errors() != errs {
			t.Errorf("%s: %d errors, want %d; %d lines, want %d", c.name, l.Errors(), errs, n, c.told)
		}
	}

	delay := config.NoImpairment()
	delay.Delay = time.Millisecond
	for direction, impair := range map[int]config.Impair{
		RX: {RX: delay, TX: config.NoImpairment()}, TX: {RX: config.NoImpairment(), TX: delay},
	} {
		l, far, now := newThreadOn(t, impair)
		f := udpFrame(100)
		f[0], f[5], f[6] = 2, 1, 2
		if direction == TX {
			l.Queue.Commit(copy(l.Queue.Slot(), f))
		} else if n, err := far.Write([][]byte{f}, false); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if l.Turn(); l.deadline(*now) != *now+1e6 {
			t.Errorf("direction %d: looks again in %d ns, when what is delayed is due in 1 ms", direction, l.deadline(*now)-*now)
		}
	}
}

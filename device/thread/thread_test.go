package thread

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// scripted is a scripted shard with its ports, which records what is done.
type scripted struct {
	*idle
	now     *int64
	takes   int64 // duration of each Step, ns
	step    func(out *Output)
	steps   int
	flushes []int // number of Steps before each Flush
	flush   func(out *Output)
	open    bool // the shard lets the thread sleep
	parks   int
	read    bool // ports have frames
	more    bool // and will have more
	armed   bool // a port has a frame
}

func (s *scripted) Step(_ vtime.Time, _ *Input, out *Output) {
	*s.now += s.takes
	s.steps++
	*out = Output{Deadline: vtime.Never}
	if s.step != nil {
		s.step(out)
	}
}

func (s *scripted) Flush(_ vtime.Time, out *Output) {
	s.flushes = append(s.flushes, s.steps)
	*out = Output{Deadline: vtime.Never}
	if s.flush != nil {
		s.flush(out)
	}
}

func (s *scripted) Park() bool { s.parks++; return s.open }

func (s *scripted) Read() bool { return s.read }

func (s *scripted) More() bool { return s.more }

func (s *scripted) Arm() bool { return s.armed }

// newScripted returns a thread of a scripted shard that does not let it sleep.
func newScripted(t *testing.T) (l *Thread, far tap.Uplink, s *scripted) {
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	s = &scripted{idle: &idle{vtime.Never}, now: now}
	l.Shard, l.Ports = s, s
	return l, far, s
}

// queueFrames makes the shard leave frames for the uplink.
func queueFrames(l *Thread, n int) {
	for range n {
		f := udpFrame(100)
		f[0], f[5], f[6] = 2, 1, 2
		l.Queue.Commit(copy(l.Queue.Slot(), f))
	}
}

// TestTurnReportsWork checks that a turn counts as work if anything came, was left or was sent.
func TestTurnReportsWork(t *testing.T) {
	for name, tc := range map[string]struct {
		out   Output
		ports bool
		frame bool
		send  bool
		work  bool
	}{
		"nothing":              {},
		"a frame of the port":  {ports: true, work: true},
		"one of the uplink":    {frame: true, work: true},
		"work is left":         {out: Output{More: true}, work: true},
		"there was some":       {out: Output{Worked: true}, work: true},
		"a frame goes out":     {send: true, work: true},
		"one came, one goes":   {frame: true, send: true, work: true},
		"all, and nothing out": {out: Output{More: true, Worked: true}, ports: true, frame: true, work: true},
	} {
		l, far, s := newScripted(t)
		s.read = tc.ports
		s.step = func(out *Output) { out.More, out.Worked = tc.out.More, tc.out.Worked }
		if tc.frame {
			f := udpFrame(100)
			f[6] = 2
			if n, err := far.Write([][]byte{f}, false); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if tc.send {
			queueFrames(l, 1)
		}
		if l.Turn() != tc.work {
			t.Errorf("%s: work %t", name, !tc.work)
		}
	}
}

// noting is an uplink that records its frames, and takes some of them.
type noting struct {
	tap.Uplink
	takes int
	given []int
	more  []bool
}

func (u *noting) Write(frames [][]byte, more bool) (int, error) {
	u.given, u.more = append(u.given, len(frames)), append(u.more, more)
	return min(u.takes, len(frames)), nil
}

// TestFramesWaitOneTurnForOthers checks that frames may wait for others in the turn in which they
// came, and not in the next.
func TestFramesWaitOneTurnForOthers(t *testing.T) {
	l, _, s := newScripted(t)
	up := &noting{Uplink: l.Uplink}
	l.Uplink, s.more = up, true
	for _, c := range []struct{ come, takes int }{{1, 0}, {0, 0}, {1, 1}, {0, 0}, {2, 3}, {0, 0}, {1, 0}} {
		queueFrames(l, c.come)
		up.takes = c.takes
		l.Turn()
	}
	s.more = false
	l.Turn()
	may := []bool{true, false, true, false, true, true, false}
	if !slices.Equal(up.given, []int{1, 1, 2, 1, 3, 1, 1}) || !slices.Equal(up.more, may) {
		t.Errorf("given %v, with more to come %v", up.given, up.more)
	}
}

// TestThreadSleepsWithoutWork checks that a thread sleeps when there is no work that could be done
// at once, and the shard allows it.
func TestThreadSleepsWithoutWork(t *testing.T) {
	for name, tc := range map[string]struct {
		waiting int // frames for the uplink, which holds 8
		takes   int
		more    bool       // the shard has left work
		armed   bool       // a port has a frame
		due     vtime.Time // from now
		halted  bool
		parks   int
		input   bool
	}{
		"nothing to do":              {due: vtime.Never, parks: 1, input: true}, // the shard has input
		"work is left":               {due: vtime.Never, more: true, input: true},
		"a port has a frame":         {due: vtime.Never, armed: true, input: true},
		"it is time already":         {due: 0},
		"it is nearly time":          {due: 1, parks: 1, input: true},
		"the last frame left":        {due: vtime.Never, waiting: 1, takes: 1, parks: 1, input: true},
		"a full queue has room":      {due: vtime.Never, waiting: 8, takes: 1, input: true},
		"a full queue has none":      {due: vtime.Never, waiting: 8, parks: 1, input: true},
		"it is to stop":              {due: vtime.Never, halted: true, parks: 1, input: true},
		"it was time a moment ago":   {due: -1},
		"of seven frames one leaves": {due: vtime.Never, waiting: 7, takes: 1, parks: 1, input: true},
	} {
		l, _, s := newScripted(t)
		l.Uplink = &noting{Uplink: l.Uplink, takes: tc.takes}
		queueFrames(l, tc.waiting)
		s.armed = tc.armed
		s.flush = func(out *Output) {
			if out.More = tc.more; tc.due != vtime.Never {
				out.Deadline = *s.now + tc.due
			}
		}
		if s.open = tc.halted; tc.halted {
			l.stop.Store(true)
		}
		if input := l.Sleep(*s.now); input != tc.input || s.parks != tc.parks {
			t.Errorf("%s: input %t, tried to sleep %d times", name, input, s.parks)
		}
	}
}

// TestThreadLooksForMoreWork checks that after work a thread looks for more for as long as that
// found work lately, and sleeps at once after a bulk transfer, whose sender waits for nothing, or
// when others want the processor.
func TestThreadLooksForMoreWork(t *testing.T) {
	const step, length = 100, 5000
	for name, tc := range map[string]struct {
		bytes int
		takes int64
		turns int // turns without work before it sleeps
	}{
		"a request":        {1000, step, length/step + 1},
		"almost a bulk":    {bulk - 1, step, length/step + 1},
		"a bulk":           {bulk, step, 1},
		"longer turns":     {1000, 10 * step, length/step/10 + 1},
		"none in its time": {1000, length, 2},
	} {
		l, _, s := newScripted(t)
		s.takes = tc.takes
		l.spin = spin{most: length, lengths: [2]int64{length, length}}
		l.Uplink = &bringing{Uplink: l.Uplink, bytes: tc.bytes}
		processors, meanwhile := runtime.GOMAXPROCS(0), 0
		s.flush = func(*Output) {
			meanwhile = runtime.GOMAXPROCS(0)
			l.stop.Store(true)
		}
		if l.Run(); meanwhile != processors+1 || runtime.GOMAXPROCS(0) != processors {
			t.Errorf("%s: Go has %d processors, then %d, then %d", name, processors, meanwhile, runtime.GOMAXPROCS(0))
		}
		if !slices.Equal(s.flushes, []int{1 + tc.turns}) {
			t.Errorf("%s: sleeps after %v turns, want %d without work", name, s.flushes, tc.turns)
		}
	}
}

// TestThreadLooksAgainIfOthersRan checks that before it sleeps, a thread lets others run on its
// processor once, and looks for work once more if they did; but for a while not if they kept the
// processor for long.
func TestThreadLooksAgainIfOthersRan(t *testing.T) {
	for name, tc := range map[string]struct {
		away   int64 // duration of a yield
		pause  bool  // others kept the processor for long a moment ago
		turns  int   // turns without work before it sleeps
		yields int
	}{
		"nobody is there":       {away: shared - 1, turns: 1, yields: 1},
		"others ran":            {away: shared, turns: 2, yields: 1},
		"others ran for long":   {away: contended, turns: 2, yields: 1},
		"they did a moment ago": {away: contended, pause: true, turns: 1},
	} {
		l, _, s := newScripted(t)
		if tc.pause {
			l.spin.until = *s.now + 1000
		}
		l.Uplink = &bringing{Uplink: l.Uplink, bytes: 100}
		yields := 0
		l.yield = func() {
			yields++
			*s.now += tc.away
		}
		s.flush = func(*Output) { l.stop.Store(true) }
		l.Run()
		if !slices.Equal(s.flushes, []int{1 + tc.turns}) || yields != tc.yields {
			t.Errorf("%s: sleeps after %v turns, want %d without work, and yields %d times, want %d", name, s.flushes, tc.turns, yields, tc.yields)
		}
		if paused := l.spin.until > *s.now; paused != (tc.away == contended) {
			t.Errorf("%s: yields again %t", name, !paused)
		}
	}
}

// bringing is an uplink with one turn's frames.
type bringing struct {
	tap.Uplink
	bytes int
}

func (u *bringing) Read(_ [][]byte, got []tap.Received) (n int, err error) {
	for ; u.bytes > 0; n++ {
		got[n] = tap.Received{Len: min(u.bytes, 1500)}
		u.bytes -= got[n].Len
	}
	return n, nil
}

// failingUplink fails where it is told to.
type failingUplink struct {
	tap.Uplink
	full        bool
	read, write error
}

func (u *failingUplink) Read(bufs [][]byte, got []tap.Received) (int, error) {
	if u.read != nil {
		return 0, u.read
	}
	return u.Uplink.Read(bufs, got)
}

func (u *failingUplink) Write(frames [][]byte, more bool) (int, error) {
	if u.write != nil || u.full {
		return 0, u.write
	}
	return u.Uplink.Write(frames, more)
}

// pausedPorts are ports that may be read again at a given time.
type pausedPorts struct {
	*idle
	until vtime.Time
}

func (p *pausedPorts) Deadline() vtime.Time { return p.until }

// TestAThreadSleepsUntilWhatIsDueFirst checks that a thread sleeps until the shard, a port or a delayed packet is due, and
// only a short time while a full or broken uplink has to be tried again.
func TestAThreadSleepsUntilWhatIsDueFirst(t *testing.T) {
	l, _, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	var log bytes.Buffer
	shard, ports, up := &idle{vtime.Never}, &pausedPorts{until: vtime.Never}, &failingUplink{Uplink: l.Uplink}
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

// slowUplink takes a microsecond for every Read; slowPorts take a millisecond.
type slowUplink struct {
	tap.Uplink
	now *int64
}

func (u *slowUplink) Read(bufs [][]byte, got []tap.Received) (int, error) {
	*u.now += 1e3
	return u.Uplink.Read(bufs, got)
}

type slowPorts struct {
	*idle
	now *int64
}

func (p *slowPorts) Read() bool {
	*p.now += 1e6
	return false
}

// stamped records the times of its Steps.
type stamped struct {
	*idle
	at []vtime.Time
}

func (s *stamped) Step(now vtime.Time, in *Input, out *Output) {
	s.at = append(s.at, now)
	s.idle.Step(now, in, out)
}

// TestFramesAreStampedWhenTheyAreRead checks that frames of the uplink get the time at which they were read, before any other
// work: Falcon's t2 and t4 must not include that (Falcon §10.1).
func TestFramesAreStampedWhenTheyAreRead(t *testing.T) {
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	s := &stamped{idle: &idle{vtime.Never}}
	l.Shard, l.Ports, l.Uplink = s, &slowPorts{s.idle, now}, &slowUplink{l.Uplink, now}
	if n, err := far.Write([][]byte{udpFrame(100)}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	begin := *now
	l.Turn()
	l.Turn()
	want := []vtime.Time{begin + 1e3, begin + 1e3 + 1e6 + 1e3}
	if !slices.Equal(s.at, want) {
		t.Errorf("Steps at %v, want %v", s.at, want)
	}
}

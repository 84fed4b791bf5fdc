package thread

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// scripted is a scripted shard with its door and ports, which records what is done.
type scripted struct {
	*idle
	now     *int64
	takes   int64 // duration of each Step, ns
	step    func(out *Output)
	steps   int
	flushes []int // number of Steps before each Flush
	flush   func(out *Output)
	open    bool // the door lets the thread sleep
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
func (s *scripted) Arm() bool  { return s.armed }

// newScripted returns a thread of a scripted shard, behind a closed door.
func newScripted(t *testing.T) (l *Thread, far tap.Port, s *scripted) {
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	s = &scripted{idle: &idle{vtime.Never}, now: now}
	l.Shard, l.Door, l.Ports = s, s, s
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

// TestWhatIsWork checks that a turn counts as work if anything came, was left or was sent, and that
// sending on the uplink is recorded separately.
func TestWhatIsWork(t *testing.T) {
	for name, tc := range map[string]struct {
		out   Output
		ports bool
		frame bool
		send  bool
		work  bool
		last  int
	}{
		"nothing":              {last: -1},
		"a frame of the port":  {ports: true, work: true, last: tookWork},
		"one of the uplink":    {frame: true, work: true, last: tookWork},
		"work is left":         {out: Output{More: true}, work: true, last: tookWork},
		"there was some":       {out: Output{Worked: true}, work: true, last: tookWork},
		"a ring was polled":    {out: Output{Polled: true}, last: -1},
		"a frame goes out":     {send: true, work: true, last: sentOut},
		"one came, one goes":   {frame: true, send: true, work: true, last: sentOut},
		"all, and nothing out": {out: Output{More: true, Worked: true}, ports: true, frame: true, work: true, last: tookWork},
	} {
		l, far, s := newScripted(t)
		s.read = tc.ports
		s.step = func(out *Output) { out.More, out.Worked, out.Polled = tc.out.More, tc.out.Worked, tc.out.Polled }
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
		if l.spin.last = -1; l.Turn() != tc.work || l.spin.last != tc.last {
			t.Errorf("%s: work %t, last %d", name, !tc.work, l.spin.last)
		}
	}
}

// noting is an uplink that records its frames, and takes some of them.
type noting struct {
	tap.Port
	takes int
	given []int
	more  []bool
}

func (u *noting) Write(frames [][]byte, more bool) (int, error) {
	u.given, u.more = append(u.given, len(frames)), append(u.more, more)
	return min(u.takes, len(frames)), nil
}

// TestCompanyIsWaitedForOnce checks that frames may wait for others in the turn in which they came,
// and not in the next.
func TestCompanyIsWaitedForOnce(t *testing.T) {
	l, _, s := newScripted(t)
	up := &noting{Port: l.Uplink}
	l.Uplink, s.more = up, true
	for _, c := range []struct{ come, takes int }{{1, 0}, {0, 0}, {1, 1}, {0, 0}, {2, 3}, {0, 0}, {1, 0}} {
		queueFrames(l, c.come)
		up.takes = c.takes
		l.Turn()
	}
	s.more = false
	l.Turn()
	company := []bool{true, false, true, false, true, true, false}
	if !slices.Equal(up.given, []int{1, 1, 2, 1, 3, 1, 1}) || !slices.Equal(up.more, company) {
		t.Errorf("given %v, with more to come %v", up.given, up.more)
	}
}

// TestSleepOrNot checks that a thread sleeps when there is no work that could be done at once, and
// the door allows it.
func TestSleepOrNot(t *testing.T) {
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
		"nothing to do":              {due: vtime.Never, parks: 1, input: true}, // the door reports input
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
		l.Uplink = &noting{Port: l.Uplink, takes: tc.takes}
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

// TestLooksForMore checks that after work a thread looks for more for as long as that found work
// lately, and sleeps at once after a bulk transfer, whose sender waits for nothing, or when others
// want the processor.
func TestLooksForMore(t *testing.T) {
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
		l.Uplink = &bringing{Port: l.Uplink, bytes: tc.bytes}
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

// bringing is an uplink with one turn's frames.
type bringing struct {
	tap.Port
	bytes int
}

func (u *bringing) Read(_ [][]byte, got []tap.Received) (n int, err error) {
	for ; u.bytes > 0; n++ {
		got[n] = tap.Received{Len: min(u.bytes, 1500)}
		u.bytes -= got[n].Len
	}
	return n, nil
}

// TestSpinLimits checks how the search time grows and shrinks, and from when on a yield was too
// long, to the nanosecond.
func TestSpinLimits(t *testing.T) {
	const most = 10 * minSpin
	for _, tc := range []struct {
		before int64
		input  bool
		slept  int64
		after  int64
	}{
		{0, true, most - 1, minSpin},
		{0, true, most, 0},
		{minSpin, true, 0, 2 * minSpin},
		{8 * minSpin, true, 0, most},
		{most, true, 0, most},
		{2 * minSpin, true, most, minSpin},
		{2*minSpin - 1, true, most, 0},
		{minSpin, false, 0, 0},
		{4 * minSpin, false, 0, 2 * minSpin},
	} {
		s := spin{most: most, lengths: [2]int64{tookWork: tc.before, sentOut: 77}, until: 1000}
		s.learn(999, tc.input, tc.slept) // it is in a pause now
		if s.length() != tc.before {
			t.Errorf("%+v: learnt while it does not look", tc)
		}
		if s.learn(1000, tc.input, tc.slept); s.length() != tc.after || s.lengths[sentOut] != 77 {
			t.Errorf("%+v: %v", tc, s.lengths)
		}
	}
	for _, tc := range []struct {
		now, away, pause int64
		on               bool
		after            int64
	}{
		{1000, contended - 1, 0, true, 0},
		{1000, contended, 0, false, shortPause},
		{1000 + uncrowded, contended, shortPause, false, 2 * shortPause},
		{1001 + uncrowded, contended, 4 * shortPause, false, shortPause},
		{1000, contended, longPause, false, longPause},
		{1000, contended, longPause/2 - 1, false, longPause - 2},
	} {
		s := spin{most: most, lengths: [2]int64{most, most}, pause: tc.pause, until: 1000}
		on := s.yielded(tc.now, tc.away)
		if on != tc.on || s.pause != tc.after && !on || !on && (s.until != tc.now+tc.after || s.lengths != [2]int64{}) {
			t.Errorf("%+v: goes on %t, %+v", tc, on, s)
		}
	}
}

// TestImpairedFramesStay checks that packets that passed the link while the port was full are sent
// when it has room, even if the impairment has ended; until then no more are taken than there is
// room for.
func TestImpairedFramesStay(t *testing.T) {
	delay := config.NoImpairment()
	delay.Delay = time.Millisecond
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: delay})
	up := &failingUplink{Port: l.Uplink, full: true}
	l.Uplink = up
	const frames = impairSlots + 3
	for sent := 0; sent < frames; {
		n := min(frames-sent, 8)
		queueFrames(l, n)
		sent += n
		l.Turn()
	}
	*now += 1e6
	l.Impair(TX, config.NoImpairment())
	l.Turn()
	d := &l.impair[TX]
	if n := len(d.out.Pending()); n != impairSlots || !d.on || d.deadline() != vtime.Never {
		t.Fatalf("%d frames have come through, on %t, the next at %d", n, d.on, d.deadline())
	}
	up.full = false
	l.Turn() // these, and then the rest
	l.Turn()
	bufs, got := [][]byte{make([]byte, 5000)}, make([]tap.Received, 1)
	arrived := 0
	for n, _ := far.Read(bufs, got); n > 0; n, _ = far.Read(bufs, got) {
		arrived++
	}
	if arrived != frames || d.on {
		t.Errorf("%d of %d frames came, on %t", arrived, frames, d.on)
	}
}

// TestMarkedIfAllowed checks that packets that a link marks count as marked if their senders allow
// it.
func TestMarkedIfAllowed(t *testing.T) {
	d := newDirection(config.Impairment{Mark: 1, Seed: 1})
	for i := range 3 {
		f := udpFrame(10)
		if i > 0 {
			f[15] |= 2
		}
		setLengths(f)
		d.take(0, f, 0)
	}
	b, marks := make([]byte, 2000), 0
	for n := d.next(0, b); n > 0; n = d.next(0, b) {
		if b[15]&3 == 3 {
			marks++
		}
	}
	if v := d.describe(); marks != 2 || v.Marked != 2 || v.Counts.Marked != 3 {
		t.Errorf("%d are marked, %+v", marks, v)
	}
}

// TestParker checks that each kind of event ends one wait and that wait reports whether it was
// input, and lists the descriptors that rang.
func TestParker(t *testing.T) {
	p, err := newParker()
	if err != nil {
		t.Fatal(err)
	}
	ring := func() (fd int) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	write := func(fd int) {
		if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	const ever = math.MaxInt64 / 4
	uplink, ports, bells := ring(), ring(), []int{ring(), ring(), ring()}
	for _, fd := range bells {
		if err := p.listen(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, held := range []int64{0, ever} {
		ends := func(what string, want bool, rung ...int) {
			t.Helper()
			ns := int64(ever)
			if !want {
				ns = 1
			}
			if input := p.wait(uplink, ports, ns, held); input != want || !slices.Equal(p.rung, rung) {
				t.Errorf("held %d, %s: input %t, %v rang", held, what, input, p.rung)
			}
		}
		ends("nothing", false)
		p.wake()
		p.wake()
		ends("woken", true)
		ends("woken once", false)
		write(bells[1])
		ends("a bell", true, bells[1])
		ends("it rang once", false)
		write(bells[0])
		write(bells[2])
		ends("two bells", true, bells[0], bells[2])
		for what, fd := range map[string]int{"the uplink": uplink, "a port": ports} {
			write(fd)
			ends(what, true)
			ends(what+" still", true)
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil {
				t.Fatal(err)
			}
			ends(what+" no more", false)
		}
	}
	if err := p.listen(bells[0], false); err != nil {
		t.Error(err)
	}
	write(bells[0])
	if p.wait(-1, -1, 1, 0) || len(p.rung) != 0 {
		t.Errorf("%v rang, which is not listened to", p.rung)
	}
	if p.listen(bells[0], false) == nil || p.listen(-1, true) == nil {
		t.Error("listening to nothing")
	}
	p.close()
	p.wake() // harmless
}

// TestNoProcessor checks that the error names the first processor that is missing.
func TestNoProcessor(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	missing := 0
	for allowed.IsSet(missing) {
		missing++
	}
	if err := CheckProcessors([]int{missing}); err == nil {
		t.Errorf("processor %d is there", missing)
	}
	if err := CheckProcessors(nil); err != nil {
		t.Error(err)
	}
}

package guest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAFunctionsOwnDeviceGivesThatFunctionOnly checks that a driver that came by a function's own
// device gets that function, by any of its numbers.
func TestAFunctionsOwnDeviceGivesThatFunctionOnly(t *testing.T) {
	const own = 0x03_2005
	for _, c := range []struct {
		g     Guest
		asked uint32
		want  uint32 // 0: denied
	}{
		{stranger{}, 0x01_1001, 0x01_1001},
		{stranger{}, abi.FunctionAssigned, abi.FunctionAssigned},
		{tied{}, abi.FunctionAssigned, own},
		{tied{}, own, own},
		{tied{}, 0x2005, own}, // host 0 means this NIC
		{tied{}, 0x2006, 0},
		{tied{}, 0x02_2005, 0},
		{tied{}, 0x03_2004, 0},
		{tied{}, 0, 0},
	} {
		number, no := chosen(c.g, c.asked)
		if number != c.want || (no != nil) != (c.want == 0) || no != nil && no.Status != abi.StatusDenied {
			t.Errorf("%T asks for %#x: %#x, %v", c.g, c.asked, number, no)
		}
	}
}

// stranger is a guest that may ask for any function; tied is one with a function's own device.
type (
	stranger struct{ Guest }
	tied     struct{ Guest }
)

func (tied) Function() uint32 { return 0x03_2005 }

// TestAGuestIsNamedByItsCID checks that a guest is named by its CID, and a process by its PID.
func TestAGuestIsNamedByItsCID(t *testing.T) {
	for want, p := range map[string]queues.Identity{
		"vsock guest 3": {Transport: "vsock", CID: 3, PID: 9}, "unix process 9": {Transport: "unix", PID: 9},
	} {
		if got := Name(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// caller is a channel that is served until it is ended.
type caller struct {
	name    string
	expects time.Duration
	dropped bool
	done    chan struct{}
}

func (c *caller) Expect(d time.Duration) { c.expects = d }
func (c *caller) Drop()                  { c.dropped = true }
func (c *caller) End()                   { close(c.done) }

// TestTheOldestSilentChannelMakesRoom checks the limit on a guest's channels. The oldest that has
// not said hello is ended to make room for another; channels that have said hello and those of
// other guests are not.
func TestTheOldestSilentChannelMakesRoom(t *testing.T) {
	s := Sessions{HelloTimeout: time.Hour}
	a, b := Key{Attachment: "a", CID: 3}, Key{Attachment: "a", CID: 4}
	var all []*caller
	start := func(name string, from Key, limit int) bool {
		c := &caller{name: name, done: make(chan struct{})}
		if !s.Start(c, from, limit, func() { <-c.done }) {
			return false
		}
		if c.expects != time.Hour {
			t.Errorf("%s has %v for its hello", name, c.expects)
		}
		all = append(all, c)
		return true
	}
	dropped := func() (names []string) {
		for _, c := range all {
			if c.dropped {
				names = append(names, c.name)
			}
		}
		return names
	}
	if start("none", a, 0) {
		t.Error("a guest without a right to channels has one")
	}
	if !start("a1", a, 3) || !start("b1", b, 1) || !start("a2", a, 3) || !start("a3", a, 3) || dropped() != nil {
		t.Errorf("dropped %v below the limit", dropped())
	}
	if !s.greet(all[0]) || !start("a4", a, 3) || !slices.Equal(dropped(), []string{"a2"}) {
		t.Errorf("dropped %v, want the oldest that has not said hello", dropped())
	}
	if s.greet(all[2]) {
		t.Error("one that made room said hello in time")
	}
	if !start("a5", a, 3) || !slices.Equal(dropped(), []string{"a2", "a3"}) {
		t.Errorf("dropped %v", dropped())
	}
	for _, c := range all[4:] {
		if !s.greet(c) {
			t.Errorf("%s was too late", c.name)
		}
	}
	if start("a6", a, 3) || !start("a6", a, 4) || !slices.Equal(dropped(), []string{"a2", "a3"}) {
		t.Errorf("dropped %v, and all had said hello", dropped())
	}
	if n := s.Begun(); n != 7 {
		t.Errorf("%d channels were served", n)
	}
	s.CloseAll()
	if start("late", b, 9) || s.Begun() != 7 || len(s.open) != 0 {
		t.Error("a channel begins after all were to end")
	}
	if !s.greet(all[0]) { // it ended by itself, not to make room
		t.Error("one that is not served any more made room")
	}
}

// TestAGuestNeverHasMoreThanTwiceItsLimitOfChannels: channels that were ended to make room count
// until they have really ended. As many may be on their way out as the limit allows; until one of
// them has ended there is no room.
func TestAGuestNeverHasMoreThanTwiceItsLimitOfChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3
		var s Sessions
		var all []*caller
		start := func() bool {
			c := &caller{done: make(chan struct{})}
			all = append(all, c)
			return s.Start(c, Key{}, limit, func() { <-c.done })
		}
		for n := range 2 * limit {
			if !start() {
				t.Fatalf("no room after %d", n)
			}
		}
		if start() {
			t.Errorf("more than %d channels", 2*limit)
		}
		all[0].End()
		synctest.Wait()
		if !start() || start() {
			t.Error("the end of one does not make room for one")
		}
		for _, c := range all[1:] {
			c.End()
		}
		s.wg.Wait()
	})
}

// TestAChannelThatMadeRoomWaitsForNoFunction: a guest whose streams all ask for a function that is
// busy has no more of them at a time than its limit, and each asks the shard a few times at most.
func TestAChannelThatMadeRoomWaitsForNoFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, streams = 3, 50
		s := &Sessions{HelloTimeout: HelloTimeout}
		nic := &ownShard{leftShard: leftShard{until: time.Now().Add(time.Hour)}}
		var served atomic.Int32
		for range streams {
			near, far := net.Pipe()
			defer far.Close()
			c := NewStream(piped{near}, StreamConfig{NIC: nic, Sessions: s, Log: func(string, ...any) {}})
			if !s.Start(c, Key{}, limit, func() {
				served.Add(1)
				c.Serve()
				served.Add(-1)
			}) {
				t.Fatal("no room for a stream, though none has a function")
			}
			if _, err := far.Write(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor})); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, far) }() // the refusal
			synctest.Wait()
			if n := served.Load(); n > limit {
				t.Fatalf("%d streams at a time, the limit is %d", n, limit)
			}
		}
		s.wg.Wait()
		if asked := nic.asked.Load(); asked > streams+10*limit {
			t.Errorf("%d streams asked the shard %d times", streams, asked)
		}
	})
}

// TestAStreamThatIsToEndWaitsForNoFunction: the end of all sessions does not wait for drivers that
// wait for a function.
func TestAStreamThatIsToEndWaitsForNoFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		s := &Sessions{HelloTimeout: HelloTimeout}
		nic := &ownShard{leftShard: leftShard{until: time.Now().Add(time.Hour)}}
		c := NewStream(piped{near}, StreamConfig{NIC: nic, Sessions: s, Log: func(string, ...any) {}})
		s.Start(c, Key{}, 1, c.Serve)
		if _, err := far.Write(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		s.CloseAll()
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// TestTheFunctionOfAKilledDriverIsThatOfTheNext: whoever starts a program again at once is not told
// that the previous one has the function. A function that stays busy is refused after a moment.
func TestTheFunctionOfAKilledDriverIsThatOfTheNext(t *testing.T) {
	for busyFor, want := range map[time.Duration]abi.Status{0: abi.StatusOK, leaveTime / 2: abi.StatusOK, time.Hour: abi.StatusBusy} {
		synctest.Test(t, func(t *testing.T) {
			s := &leftShard{until: time.Now().Add(busyFor)}
			f, err := attach(t.Context(), s, &Binding{}, 1)
			st := abi.StatusOK
			if no := (*Refusal)(nil); errors.As(err, &no) {
				st = no.Status
			}
			if st != want || (f != nil) != (want == abi.StatusOK) {
				t.Errorf("busy for %v: %v", busyFor, err)
			}
		})
	}
}

// leftShard is a shard whose one function has a driver until some time.
type leftShard struct {
	Shard
	until time.Time
	asked atomic.Int32 // how often drivers asked for it
}

func (*leftShard) Do(f func(falcon.Time)) error {
	f(0)
	return nil
}

func (*leftShard) Inbox() *inbox.Box { return new(inbox.Box) }
func (*leftShard) Guests() *Set      { return NewSet(SetConfig{}) }

func (s *leftShard) Attach(*Binding, uint32) (*Device, abi.Status, string) {
	s.asked.Add(1)
	if time.Now().Before(s.until) {
		return nil, abi.StatusBusy, "another driver has it"
	}
	return &Device{Function: new(pfvf.Function)}, abi.StatusOK, ""
}

// ownShard is a NIC of one shard.
type ownShard struct{ leftShard }

func (s *ownShard) Find(number uint32, _ string, _ queues.Identity) (Shard, uint32) {
	return &s.leftShard, number
}
func (*ownShard) SetMemory(*Session, uint64) {}

// piped is a session over a stream whose guest shows no memory.
type piped struct{ net.Conn }

func (piped) Identity() queues.Identity         { return queues.Identity{} }
func (piped) Watch(func(queues.Regions)) func() { return func() {} }

// TestAChannelEndsThoughItsGuestDoesNotRead checks that channels end although a guest has sent more
// requests than may wait for it, and reads no answer.
func TestAChannelEndsThoughItsGuestDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		s := &Sessions{HelloTimeout: HelloTimeout}
		c := NewStream(piped{near}, StreamConfig{NIC: new(ownShard), Sessions: s, Log: func(string, ...any) {}})
		s.Start(c, Key{}, 1, c.Serve)
		say := func(b []byte) {
			t.Helper()
			if _, err := far.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		say(abi.AppendStruct(nil, 1, &abi.Hello{Major: abi.VersionMajor}))
		if _, _, err := abi.ReadMessage(far, make([]byte, abi.MaxMessage)); err != nil {
			t.Fatal(err)
		}
		// The writer takes one set of answers, and waits with it. Another set may wait for the writer.
		say(bytes.Repeat(abi.AppendStruct(nil, 1, &abi.Heartbeat{}), 2*maxReplies+1))
		synctest.Wait()
		start := time.Now()
		s.CloseAll()
		if took := time.Since(start); took != finalTimeout {
			t.Errorf("it took %v", took)
		}
	})
}

package vhostuser

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// asked is a back end that agrees to everything and keeps what it was asked. The one who asks waits
// for each answer, so what was asked is whole then.
type asked struct {
	mu  sync.Mutex
	log []string
}

func (a *asked) take() (log []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	log, a.log = a.log, nil
	return log
}

// attachAsked gives a relay such a back end.
func attachAsked(t *testing.T, r *Relay) *asked {
	t.Helper()
	near, far := sockettest.Pair(t)
	a, done := &asked{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := ReadMessage(far)
			if err != nil {
				return
			}
			reply := u64(0)
			if m.Request == GetVringBase {
				reply = VringState{Index: 0, Num: 7}.Append(nil)
			}
			a.mu.Lock()
			a.log = append(a.log, fmt.Sprintf("%v %d", m.Request, m.FDs()))
			a.mu.Unlock()
			m.Close()
			if WriteMessage(far, m.Request, FlagReply, reply) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { r.Detach(); <-done })
	if err := r.Attach(near); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRelayTellsChangesOfMemory: the worker is sent only the changes of the memory: one region that
// was added or removed as such, several changes as a whole table, or region by region if a table
// has no room for all.
func TestRelayTellsChangesOfMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(fd), "guest").Close()
	maps := make([]*Mapping, 20)
	for i := range maps {
		maps[i] = &Mapping{Region: Region{GPA: uint64(i) << 20, Size: 1 << 20}, file: fd}
	}
	r := NewRelay(Relayed{Layout: VsockLayout}, time.Minute, func(err error) { t.Error(err) })
	st := &State{Vrings: make([]Vring, VsockLayout.Rings)}
	set := func(of ...*Mapping) {
		t.Helper()
		if err := r.SetMemory(st, of); err != nil {
			t.Fatal(err)
		}
	}
	set(maps[0]) // nobody listens yet
	a := attachAsked(t, r)
	more, less := fmt.Sprintf("%v 1", AddMemReg), fmt.Sprintf("%v 0", RemMemReg)
	table := func(n int) string { return fmt.Sprintf("%v %d", SetMemTable, n) }
	if log := a.take(); !slices.Contains(log, more) {
		t.Errorf("at first: %q", log)
	}
	for _, c := range []struct {
		what string
		maps []*Mapping
		want []string
	}{
		{"nothing", maps[:1], nil},
		{"one more", maps[:2], []string{more}},
		{"two more", maps[:4], []string{more, more}},
		{"one less", maps[1:4], []string{less}},
		{"one for another", maps[2:5], []string{table(3)}},
		{"all others", maps[5:7], []string{table(2)}},
		{"sixteen", maps[:16], slices.Repeat([]string{more}, 14)},
		{"one of sixteen for another", maps[1:17], []string{table(16)}},
		{"one of sixteen for two", maps[2:19], []string{less, more, more}},
		{"none", nil, slices.Repeat([]string{less}, 17)},
	} {
		set(c.maps...)
		if log := a.take(); !slices.Equal(log, c.want) {
			t.Errorf("%s: asked %q, want %q", c.what, log, c.want)
		}
	}
}

// TestRelayWithoutConfigurationHasNone: reading the configuration space of a device that has none
// gives nothing.
func TestRelayWithoutConfigurationHasNone(t *testing.T) {
	with := NewRelay(Relayed{Config: space{}.Config}, time.Minute, nil)
	b := make([]byte, 2)
	if !with.Config(6, b) || !bytes.Equal(b, []byte{7, 8}) || with.Config(7, b) {
		t.Errorf("% x", b)
	}
	if NewRelay(Relayed{}, time.Minute, nil).Config(0, b) {
		t.Error("a configuration space of nobody")
	}
}

// TestRelayTellsDescriptors: a worker is sent the descriptors of a running ring when they change,
// and those of other rings when they start.
func TestRelayTellsDescriptors(t *testing.T) {
	r := NewRelay(Relayed{Layout: VsockLayout, Features: FeatureVersion1}, time.Minute, func(err error) { t.Error(err) })
	st := &State{
		Features: FeatureVersion1, Regions: []Region{{Size: 0x10000}},
		Vrings: []Vring{{Num: 8}, {Num: 8, Desc: 0x1000, Avail: 0x2000, Used: 0x3000}},
	}
	fd := descriptor(t, 1)
	defer unix.Close(fd)
	start := func() {
		t.Helper()
		if err := r.StartVring(st, 1, fd, -1, -1); err != nil {
			t.Fatal(err)
		}
	}
	r.SetCall(1, fd, -1) // nobody listens, and nothing runs
	start()
	r.SetCall(1, fd, -1)
	r.StopVring(1)
	a := attachAsked(t, r)
	a.take()
	r.SetCall(1, fd, -1)
	if log := a.take(); len(log) != 0 {
		t.Errorf("of a ring that does not run: %q", log)
	}
	start()
	a.take()
	r.SetCall(1, fd, -1)
	if log, want := a.take(), []string{"SET_VRING_ERR 0", "SET_VRING_CALL 1"}; !slices.Equal(log, want) {
		t.Errorf("of a ring that runs: %q, want %q", log, want)
	}
}

// noted is a ledger of packed rings.
type noted map[int]uint32

func (n noted) Begin(ring int, base uint32) { n[ring] = base }
func (n noted) Base(ring int) uint32        { return n[ring] }

// TestRelayKnowsWhereRingsAre: without a worker a split ring is at the used index in guest memory,
// or at the one read last; if it was never readable, at its base. A packed ring is where its ledger
// says.
func TestRelayKnowsWhereRingsAre(t *testing.T) {
	ledger := noted{}
	r := NewRelay(Relayed{Layout: VsockLayout, Ledger: ledger}, time.Minute, func(err error) { t.Error(err) })
	st := func(gpa, size uint64) *State {
		return &State{
			Regions: []Region{{GPA: gpa, Size: size}},
			Vrings:  []Vring{{Num: 8, Base: 7}, {Num: 8, Base: 7, Desc: 0x1000, Avail: 0x2000, Used: 0x3000}},
		}
	}
	file := descriptorOf(t, 0x20000)
	if _, err := unix.Pwrite(file, []byte{0x34, 0x12}, 0x10000+0x3002); err != nil {
		t.Fatal(err)
	}
	at := func(gpa, size uint64) []*Mapping {
		return []*Mapping{{Region: Region{GPA: gpa, Size: size, Offset: 0x10000}, file: file}}
	}
	for i, c := range []struct {
		later *State
		maps  []*Mapping
		base  uint32
	}{
		{nil, nil, 7},
		{st(0x200000, 0x10000), at(0x200000, 0x10000), 0x1234},
		{st(0x300000, 0x1000), at(0x100000, 0x10000), 0x1234},
		{st(0x200000, 0x10000), at(0x100000, 0x10000), 7},
	} {
		if err := r.StartVring(st(0x100000, 0x10000), 1, -1, -1, -1); err != nil {
			t.Fatal(err)
		}
		if c.later != nil {
			if err := r.SetMemory(c.later, c.maps); err != nil {
				t.Fatal(err)
			}
		}
		if base := r.StopVring(1); base != c.base {
			t.Errorf("%d: base %#x, want %#x", i, base, c.base)
		}
	}
	if err := r.StartVring(st(0x100000, 0x2000), 1, -1, -1, -1); err == nil {
		t.Error("a ring outside memory was started")
	}
	packed := st(0x100000, 0x10000)
	packed.Features, packed.Vrings[1].Base = FeaturePacked, 0x80028002
	if err := r.StartVring(packed, 1, -1, -1, -1); err != nil {
		t.Fatal(err)
	}
	ledger[1] += 0x30003 // by a worker that is gone
	if base := r.StopVring(1); base != 0x80058005 {
		t.Errorf("a packed ring: base %#x", base)
	}
}

// TestRelayTellsAnotherDriverFromAPause: rings that start where they stopped are those of a guest that
// was paused. If the first one starts elsewhere, another driver has begun, once for all rings.
func TestRelayTellsAnotherDriverFromAPause(t *testing.T) {
	anew := 0
	r := NewRelay(Relayed{Layout: VsockLayout, Anew: func() { anew++ }}, time.Minute, nil)
	st := &State{Regions: []Region{{Size: 0x10000}}}
	for i, c := range []struct {
		bases [2]uint32
		anew  int
	}{{[2]uint32{0, 0}, 0}, {[2]uint32{0, 0}, 0}, {[2]uint32{7, 9}, 1}, {[2]uint32{7, 9}, 0}, {[2]uint32{0, 0}, 1}} {
		st.Vrings = nil
		anew = 0
		for _, base := range c.bases {
			st.Vrings = append(st.Vrings, Vring{Num: 8, Base: base, Desc: 0x1000, Avail: 0x2000, Used: 0x3000})
		}
		for ring := range 2 {
			if err := r.StartVring(st, ring, -1, -1, -1); err != nil {
				t.Fatal(err)
			}
		}
		for ring := range 2 {
			r.StopVring(ring)
		}
		if anew != c.anew {
			t.Errorf("start %d: another driver began %d times, want %d", i, anew, c.anew)
		}
	}
}

// TestOnlyItsOwnAnswerSatisfiesAQuestion: a request succeeds only with its own answer, and only if
// that is 0.
func TestOnlyItsOwnAnswerSatisfiesAQuestion(t *testing.T) {
	for _, tc := range []struct {
		name           string
		request, reply Request
		flags          uint32
		payload        []byte
		want           string // the answer's payload
		err            string
	}{
		{name: "done", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: u64(0)},
		{name: "refused", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: u64(9), err: "declined with 9"},
		{name: "short", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: []byte{0}, err: "payload of 1 bytes"},
		{name: "of another", request: SetOwner, reply: SetFeatures, flags: FlagReply, payload: u64(0), err: "answered by"},
		{name: "no reply", request: SetOwner, reply: SetOwner, flags: 0, payload: u64(0), err: "answered by"},
		{name: "with data", request: GetVringBase, reply: GetVringBase, flags: FlagReply, payload: []byte("base 7.."), want: "base 7.."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near, far := sockettest.Pair(t)
			if err := WriteMessage(far, tc.reply, tc.flags, tc.payload); err != nil {
				t.Fatal(err)
			}
			f := frontend{conn: near, limit: time.Minute}
			got, err := f.ask(tc.request, u64(5))
			if string(got) != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q, %v; want %q, error %q", got, err, tc.want, tc.err)
			}
			m, err := ReadMessage(far)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Request != tc.request || m.Flags != FlagVersion|FlagNeedReply || string(m.Payload) != string(u64(5)) {
				t.Errorf("asked %+v", m.Header)
			}
		})
	}
	near, far := sockettest.Pair(t)
	far.Close()
	f := frontend{conn: near, limit: time.Minute}
	if _, err := f.ask(SetOwner, nil); err == nil {
		t.Error("asked nobody without an error")
	}
	near.Close()
	if _, err := f.ask(SetOwner, nil); err == nil {
		t.Error("asked over a closed socket without an error")
	}
}

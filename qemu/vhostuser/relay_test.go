package vhostuser

import (
	"fmt"
	"os"
	"slices"
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

// TestRelayTellsMemory: the worker hears of memory what has changed: a region more or less as such,
// both at once as a whole table, and one by one where a table has no room for all.
func TestRelayTellsMemory(t *testing.T) {
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

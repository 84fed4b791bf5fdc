package qemu

import (
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues"
)

// regionsOf are regions one by one.
func regionsOf(rs queues.Regions) []queues.Region { return slices.Collect(rs.All()) }

// memoryOf is regions as a function has them.
func memoryOf(rs queues.Regions) *queues.Memory {
	var m queues.Memory
	m.Use(rs)
	return &m
}

// TestWatch announces changes while watchers come and go.
func TestWatch(t *testing.T) {
	var r ram
	old, next := queues.NewRegions([]queues.Region{{Addr: 1, Mem: []byte{1}}}), queues.NewRegions([]queues.Region{{Addr: 2, Mem: []byte{2}}})
	r.set(old)
	var got []uint64
	entered, leave := make(chan struct{}), make(chan struct{})
	stop := r.watch(func(rs queues.Regions) {
		got = append(got, regionsOf(rs)[0].Addr)
		if regionsOf(rs)[0].Addr == 2 {
			close(entered)
			<-leave
		}
	})
	done := make(chan struct{})
	go func() {
		r.set(next)
		close(done)
	}()
	<-entered
	select {
	case <-done:
		t.Error("set returned before its watcher")
	case <-time.After(time.Millisecond):
	}
	// Others may come and go, and the watcher may leave, while it is at work.
	r.watch(func(rs queues.Regions) {
		if regionsOf(rs)[0].Addr != 2 {
			t.Error("a new watcher sees old memory")
		}
	})()
	stop()
	close(leave)
	<-done
	if len(r.watchers) != 0 {
		t.Errorf("%d watchers are kept when all have left", len(r.watchers))
	}
	r.set(old)
	if len(got) != 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("watcher saw %v", got)
	}
}

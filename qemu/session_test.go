package qemu

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// regionsOf are regions one by one.
func regionsOf(rs queues.Regions) []queues.Region { return slices.Collect(rs.All()) }

// memoryOf is regions as a function has them.
func memoryOf(rs queues.Regions) *queues.Memory {
	var m queues.Memory
	m.Use(rs)
	return &m
}

// TestWatchersHearOfEachChange: each watcher is told of each change, while others come and go.
func TestWatchersHearOfEachChange(t *testing.T) {
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

// hasMemory checks that a session knows the guest's memory from its beginning.
func hasMemory(t *testing.T, a queues.Attachment, addr uint64) {
	t.Helper()
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first := true
	s.Watch(func(rs queues.Regions) {
		if first && !memoryOf(rs).Contains(addr, 4096) {
			t.Error("the session has begun without the guest's memory")
		}
		first = false
	})()
}

// TestWindowSessionWaitsForTheMemory: a session that a driver opens by its window waits until the
// device knows the guest's memory. The same holds for each worker that takes over from one that
// died.
func TestWindowSessionWaitsForTheMemory(t *testing.T) {
	known := make(chan struct{})
	opt := quiet()
	opt.Known = known
	v, err := ListenVhostUser(filepath.Join(t.TempDir(), "g.sock"), testCID, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	a, err := v.Listen(abi.Port)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.AddWindow(1, abi.FunctionVF, v.Path()+".w"); err != nil {
		t.Fatal(err)
	}
	v.Serve()
	w := dialWindow(t, v.Path()+".w")
	mem, err := unix.Mmap(w.fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	defer w.dial(t, mem).Close()
	startGuest(t, v, vhosttest.Options{})
	close(known)
	hasMemory(t, a, vhosttest.FreeBase)
}

// TestFunctionSessionWaitsForTheMemory is like TestWindowSessionWaitsForTheMemory for a PCI
// function.
func TestFunctionSessionWaitsForTheMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	known := make(chan struct{})
	v, in := vfioWorkerWaiting(t, r, known)
	q.dial(t)
	r.Attach(in.dial)
	close(known)
	hasMemory(t, v, vfioTestBase)
}

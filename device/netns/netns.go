package netns

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// New locks the calling goroutine to its OS thread and moves the thread to a new network namespace
// whose loopback is up and whose bridges do not call netfilter. It needs CAP_SYS_ADMIN. The
// goroutine must never unlock the thread, because other goroutines would then run in the namespace.
func New() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread() // nothing changed
		return fmt.Errorf("new network namespace: %w (it needs root or CAP_SYS_ADMIN)", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("new network namespace: loopback up: %w", err)
	}
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		// If the kernel has br_netfilter, each frame on a bridge passes its hooks, even without
		// rules.
		_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("0"), 0)
	}
	return nil
}

// TB is the part of testing.TB that Run needs.
type TB interface {
	Helper()
	Skip(args ...any)
	SkipNow()
	Skipped() bool
	Fatal(args ...any)
	FailNow()
}

// Run calls f on a new thread in a new network namespace and returns when f has returned; the
// thread then ends. If the process may not make namespaces, the test is skipped, or fails if
// VNIC_TEST_REQUIRE=1. f may end the test with Fatal or Skip.
func Run(t TB, f func()) {
	t.Helper()
	var refused error
	finished := false
	done := make(chan struct{})
	go func() {
		defer close(done) // the thread stays locked, so it ends with this goroutine
		if refused = New(); refused == nil {
			f()
		}
		finished = true
	}()
	<-done
	report(t, refused, finished)
}

// report applies the outcome of f to the test.
func report(t TB, refused error, finished bool) {
	t.Helper()
	switch {
	case refused != nil && os.Getenv("VNIC_TEST_REQUIRE") == "1":
		t.Fatal(refused)
	case refused != nil:
		t.Skip(refused)
	case !finished && t.Skipped():
		t.SkipNow()
	case !finished:
		t.FailNow()
	}
}

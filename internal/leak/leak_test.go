package leak

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

// left returns the error text of start().wait for what f leaves.
func left(t *testing.T, f func()) string {
	t.Helper()
	before, err := start()
	if err != nil {
		t.Fatal(err)
	}
	f()
	if err := before.wait(0); err != nil {
		return err.Error()
	}
	return ""
}

func TestAnOpenDescriptorIsALeak(t *testing.T) {
	var f *os.File
	said := left(t, func() {
		var err error
		if f, err = os.Open("/dev/null"); err != nil {
			t.Fatal(err)
		}
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, `1 descriptors are left open: ["/dev/null"]`) {
		t.Error(said)
	}
}

func TestWithoutLeaksNothingIsSaid(t *testing.T) {
	if said := left(t, func() {}); strings.Contains(said, "left") {
		t.Error(said)
	}
}

func TestGoroutineAndNamespace(t *testing.T) {
	end, ended, moved := make(chan struct{}), make(chan struct{}), make(chan error)
	said := left(t, func() {
		go func() {
			defer close(ended)
			runtime.LockOSThread()
			moved <- unix.Unshare(unix.CLONE_NEWNET)
			<-end
		}()
		if err := <-moved; err != nil {
			if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	})
	close(end)
	<-ended
	if !strings.Contains(said, "threads are left in network namespaces") || !strings.Contains(said, "TestGoroutineAndNamespace") {
		t.Error(said)
	}
}

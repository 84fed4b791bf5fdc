package sockettest

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Pair returns the two ends of a connection. They are closed when the test ends.
func Pair(tb testing.TB) (a, b *net.UnixConn) {
	tb.Helper()
	a, b, err := New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// New is like Pair, for goroutines other than the test's. The caller closes both ends.
func New() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	a, errA := conn(fds[0])
	b, errB := conn(fds[1])
	return a, b, errors.Join(errA, errB)
}

func conn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "one of a pair")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

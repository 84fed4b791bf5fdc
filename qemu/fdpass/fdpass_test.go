package fdpass_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

func send(t *testing.T, c *net.UnixConn, text string, fds ...int) {
	t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix([]byte(text), oob, nil); err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T) int {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// TestDescriptorsAreTakenInOrder: descriptors are taken in the order in which they came. A negative
// number is no descriptor; 0 is one.
func TestDescriptorsAreTakenInOrder(t *testing.T) {
	var f fdpass.FDs
	for _, fd := range []int{0, -1, 7, -5, 3} {
		f.Add(fd)
	}
	if f.Len() != 3 {
		t.Errorf("%d descriptors", f.Len())
	}
	for _, want := range []int{0, 7, 3, -1, -1} {
		if got := f.Take(); got != want {
			t.Errorf("descriptor %d, want %d", got, want)
		}
	}
	f.Close()
}

// TestPiecesAreReadWhole: a message that arrives in pieces is read completely, with the descriptors
// of all pieces.
func TestPiecesAreReadWhole(t *testing.T) {
	near, far := sockettest.Pair(t)
	fd := file(t)
	send(t, far, "one ")
	send(t, far, "two ", fd)
	send(t, far, "three", fd, fd)
	var f fdpass.FDs
	defer f.Close()
	b := make([]byte, 13)
	if err := f.ReadFull(near, b, 3); err != nil || string(b) != "one two three" || f.Len() != 3 {
		t.Errorf("%q with %d descriptors, %v", b, f.Len(), err)
	}
	if err := f.ReadFull(near, nil, 3); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// TestMoreDescriptorsThanTheLimitAreClosed: as many descriptors as the limit may come, in one
// message or in several. More are an error, and all are closed.
func TestMoreDescriptorsThanTheLimitAreClosed(t *testing.T) {
	for limit := 1; limit < 6; limit++ {
		for n := range limit + 3 {
			for _, apart := range []bool{false, true} {
				near, far := sockettest.Pair(t)
				fds := make([]int, n)
				for i := range fds {
					fds[i] = file(t)
				}
				if apart {
					send(t, far, "a", fds[:n/2]...)
					send(t, far, "b", fds[n/2:]...)
				} else {
					send(t, far, "ab", fds...)
				}
				var f fdpass.FDs
				err := f.ReadFull(near, make([]byte, 2), limit)
				if (err == nil) != (n <= limit) || err == nil && f.Len() != n || err != nil && !strings.Contains(err.Error(), "more than") {
					t.Errorf("%d of at most %d, apart %t: %d came, %v", n, limit, apart, f.Len(), err)
				}
				f.Close()
				if f.Len() != 0 {
					t.Errorf("%d are left", f.Len())
				}
			}
		}
	}
}

// TestKernelsLimitIsEnough: with a limit above the kernel's, all descriptors that the kernel passes
// are taken.
func TestKernelsLimitIsEnough(t *testing.T) {
	near, far := sockettest.Pair(t)
	fds := make([]int, 253) // SCM_MAX_FD
	for i := range fds {
		fds[i] = file(t)
	}
	send(t, far, "x", fds...)
	var f fdpass.FDs
	defer f.Close()
	if err := f.ReadFull(near, make([]byte, 1), 1000); err != nil || f.Len() != len(fds) {
		t.Errorf("%d descriptors, %v", f.Len(), err)
	}
}

// TestOtherSideMayLeaveBetweenMessages: the other side may close the connection before the first
// byte of a message, but not after it.
func TestOtherSideMayLeaveBetweenMessages(t *testing.T) {
	for n, want := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF, nil} {
		near, far := sockettest.Pair(t)
		if n > 0 {
			send(t, far, strings.Repeat("x", n))
		}
		far.Close()
		var f fdpass.FDs
		if err := f.ReadFull(near, make([]byte, 3), 1); !errors.Is(err, want) {
			t.Errorf("after %d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestOtherControlMessagesCarryNoDescriptors: control messages of other kinds are not taken for
// descriptors.
func TestOtherControlMessagesCarryNoDescriptors(t *testing.T) {
	near, far := sockettest.Pair(t)
	raw, err := near.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	send(t, far, "x", file(t))
	var f fdpass.FDs
	defer f.Close()
	if err := f.ReadFull(near, make([]byte, 1), 16); err != nil || f.Len() != 1 {
		t.Errorf("%d descriptors, %v", f.Len(), err)
	}
}

// TestDescriptorsAreSentOnce: bytes that the socket does not take at once are sent afterwards, and
// the descriptors are sent once.
func TestDescriptorsAreSentOnce(t *testing.T) {
	near, far := sockettest.Pair(t)
	if err := near.SetWriteBuffer(1); err != nil { // the kernel has a least size
		t.Fatal(err)
	}
	fd, text := file(t), strings.Repeat("0123456789abcdef", 4096)
	sent := make(chan error, 1)
	go func() {
		err := fdpass.WriteAll(near, []byte(text), fd, fd)
		sent <- errors.Join(err, fdpass.WriteAll(near, []byte("end")), near.Close())
	}()
	var f fdpass.FDs
	defer f.Close()
	b := make([]byte, len(text)+3)
	if err := f.ReadFull(far, b, 2); err != nil || string(b) != text+"end" || f.Len() != 2 {
		t.Errorf("%d descriptors, %v", f.Len(), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if err := fdpass.WriteAll(near, []byte("x")); err == nil {
		t.Error("written to a socket that is closed")
	}
}

package qemu

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// TestSocketKept: one process keeps a socket and another serves it. The socket file is removed by
// the process that keeps it.
func TestSocketKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	kept, err := KeepSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := KeepSocket(path); err == nil {
		t.Error("kept twice")
	}
	for range 2 { // one process after the other
		f, err := kept.File()
		if err != nil {
			t.Fatal(err)
		}
		a, err := ServeUnix(f, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, status, reason := attachClient(t, path, preambleOf(0)); status != 0 {
			t.Error(reason)
		}
		s, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Close(), a.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the file of the socket is gone: %v", err)
		}
	}
	f, err := kept.File()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ServeUnix(f, path+"2", nil); err == nil || !strings.Contains(err.Error(), "listens at "+path) {
		t.Errorf("a socket of another path: %v", err)
	}
	if err := kept.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the socket stays: %v", err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if f, err = tcp.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	if _, err := ServeUnix(f, path, nil); err == nil || !strings.Contains(err.Error(), "listens at 127.0.0.1") {
		t.Errorf("a socket of another kind: %v", err)
	}
	if _, err := ServeUnix(os.NewFile(uintptr(memfd(t, 1, 0)), "file"), path, nil); err == nil || !strings.Contains(err.Error(), "does not listen") {
		t.Errorf("no socket: %v", err)
	}
}

// TestCaller: a caller waits until its front end listens. After Close it connects no more.
func TestCaller(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	call := func(c Acceptor) <-chan error {
		came := make(chan error, 1)
		go func() {
			conn, err := c.AcceptUnix()
			if err == nil {
				_, err = conn.Write([]byte("x"))
				conn.Close()
			}
			came <- err
		}()
		return came
	}
	c, err := CallNet(path)
	if err != nil {
		t.Fatal(err)
	}
	early := call(c)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer := func() (string, error) {
		t.Helper()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		return string(b), err
	}
	if got, err := answer(); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-early; err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	late := call(c)
	if err := <-late; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if got, err := answer(); got != "" || err != nil { // it may have connected, and has hung up
		t.Errorf("%q, %v", got, err)
	}
	alone, err := CallNet(path + "2")
	if err != nil {
		t.Fatal(err)
	}
	waits := call(alone)
	_ = alone.Close()
	if err := <-waits; !errors.Is(err, net.ErrClosed) {
		t.Errorf("while it waits: %v", err)
	}
}

// TestLedgersOfARelay: each ring of a port has a part of its ledger of its own.
func TestLedgersOfARelay(t *testing.T) {
	r, err := NewNetRelay(newHanded(), "port", 2, 1500, quiet())
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range 4 {
		l := ringLedger(r.mem).of(i)
		if &l[0] != &r.mem[at] || len(l) != virtqueue.LedgerSize {
			t.Errorf("ring %d is elsewhere", i)
		}
		at += len(l)
	}
	if at != len(r.mem) {
		t.Errorf("four rings have %d bytes of %d", at, len(r.mem))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestVfioTrigger: a vector that QEMU raises itself is raised by the worker, too.
func TestVfioTrigger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	v := vfioWorker(t, r)
	for i := range q.irqs {
		q.raised(t, v, i)
	}
	set := vfiouser.IRQSet{Flags: vfiouser.IRQDataNone | vfiouser.IRQTrigger, Index: vfiouser.IRQMSIX, Start: 3, Count: 1}
	if _, err := q.Call(vfiouser.SetIRQs, set.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for i := range q.irqs {
		if n := q.raised(t, v, i); (n != 0) != (i == 3) {
			t.Errorf("vector %d was raised %d times", i, n)
		}
	}
}

// TestVfioFewerVectors: a worker signals the eventfds that QEMU has given last, whether it was
// there or came later, and none that were taken away.
func TestVfioFewerVectors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	r := serveVfioRelay(t, path)
	q := startVfioQEMU(t, path)
	before := vfioWorker(t, r)
	if err := errors.Join(q.SetIRQs(vfiouser.IRQMSIX, 2, 1), q.SetIRQs(vfiouser.IRQMSIX, 4, 1, q.irqs[2])); err != nil {
		t.Fatal(err)
	}
	check := func(what string, v *VfioUser) {
		t.Helper()
		for i := range q.irqs {
			q.raised(t, v, i)
		}
		for vector, at := range map[uint32]int{1: 1, 2: -1, 3: 3, 4: 2} {
			set := vfiouser.IRQSet{Flags: vfiouser.IRQDataNone | vfiouser.IRQTrigger, Index: vfiouser.IRQMSIX, Start: vector, Count: 1}
			if _, err := q.Call(vfiouser.SetIRQs, set.Append(nil)); err != nil {
				t.Fatal(err)
			}
			for i := range q.irqs {
				if n := q.raised(t, v, i); (n != 0) != (i == at) {
					t.Errorf("%s: with vector %d eventfd %d was raised %d times", what, vector, i, n)
				}
			}
		}
	}
	check("the worker that was there", before)
	r.Detach()
	_ = before.Close()
	check("the next", vfioWorker(t, r))
}

// TestPortClosedMeanwhile: a connection that was accepted and that nobody has taken ends with its
// port.
func TestPortClosedMeanwhile(t *testing.T) {
	v, a := startBackend(t)
	g := startGuest(t, v, vhosttest.Options{})
	c, err := g.Dial(testPort, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestInheritsTAP: QEMU has a TAP where its arguments say.
func TestInheritsTAP(t *testing.T) {
	fd := memfd(t, 0, unix.F_SEAL_SHRINK)
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tap := os.NewFile(uintptr(own), "tap")
	defer tap.Close()
	if _, err := tap.WriteAt([]byte("here it is"), 0); err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeQEMU, "heir")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{Binary: exe, Kernel: "k", Console: FileChardev("c"), NICs: []NIC{{Port: &Port{}}, {TAP: tap, MAC: "02::1"}}}
	if _, err := Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), "-netdev tap,id=net0,fd=5: here it is") {
		t.Errorf("%v", err)
	}
}

// TestNobodyElseIsTheGuest: whatever the umask, only the owner of a guest's socket can connect to
// it, and its group if the umask allows that.
func TestNobodyElseIsTheGuest(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	for umask, want := range map[int]os.FileMode{0: 0o660, 0o007: 0o660, 0o022: 0o640, 0o077: 0o600} {
		syscall.Umask(umask)
		path := filepath.Join(t.TempDir(), "s")
		s, err := listenUnixSocket(path)
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(path)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("umask %03o: %v, %v", umask, fi.Mode(), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

package qemu

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestKeptSocketServesTheNextProcess: one process keeps a socket and another serves it. The socket
// file is removed by the process that keeps it.
func TestKeptSocketServesTheNextProcess(t *testing.T) {
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

// TestCallerConnectsAgain: a caller waits until its front end listens. After Close it does not
// connect any more.
func TestCallerConnectsAgain(t *testing.T) {
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

// TestSocketPathsFitTheKernel: a path may be as long as the kernel allows, for listening and for
// connecting.
func TestSocketPathsFitTheKernel(t *testing.T) {
	dir := t.TempDir()
	for n, ok := range map[int]bool{maxSocketPath - 1: true, maxSocketPath: true, maxSocketPath + 1: false} {
		path := filepath.Join(dir, strings.Repeat("x", max(1, n-len(dir)-1)))
		if len(path) != n {
			t.Skip("the folder for tests has too long a name")
		}
		l, err := ListenNet(path)
		if (err == nil) != ok {
			t.Errorf("a path of %d bytes: %v", n, err)
		}
		if err == nil {
			_ = l.Close()
		}
		c, err := CallNet(path)
		if (err == nil) != ok {
			t.Errorf("a path of %d bytes is called: %v", n, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	for _, open := range []func(string) (Acceptor, error){ListenNet, CallNet} {
		if _, err := open(""); err == nil {
			t.Error("an empty path is taken")
		}
	}
}

// lines receives the log.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func newLines() (lines, *slog.Logger) {
	l := make(lines, 100)
	return l, slog.New(slog.NewTextHandler(l, nil))
}

// next waits for a line.
func (l lines) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-l:
		return line
	case <-time.After(time.Minute):
		t.Fatal("nothing is logged")
		return ""
	}
}

// TestLogSaysWhyQEMUIsGone: if a QEMU is disconnected because of a mistake, the reason is logged.
// Nothing is logged if it disconnects by itself or is disconnected by Close.
func TestLogSaysWhyQEMUIsGone(t *testing.T) {
	said, log := newLines()
	come := func(in *handed) {
		t.Helper()
		conn, err := in.dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	in, why := newHanded(), make(chan error)
	s := newServer(in, log, func(*net.UnixConn) error { return <-why })
	s.single = true // the second comes when the first is gone, however long that takes
	s.start()
	come(in)
	why <- nil
	come(in)
	why <- errors.New("nonsense")
	if line := said.next(t); !strings.Contains(line, "QEMU disconnected") || !strings.Contains(line, "nonsense") {
		t.Errorf("logged %s", line)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}

	in, here := newHanded(), make(chan struct{})
	s = newServer(in, log, func(conn *net.UnixConn) error {
		close(here)
		_, err := io.ReadAll(conn)
		return err
	})
	s.start()
	come(in)
	<-here
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if len(said) > 0 {
		t.Errorf("logged %s", <-said)
	}
}

// TestNonsenseIsLogged: each kind of device logs why it disconnected a QEMU.
func TestNonsenseIsLogged(t *testing.T) {
	for name, serve := range map[string]func(path string, opt VhostOptions) (io.Closer, error){
		"vsock": func(path string, opt VhostOptions) (io.Closer, error) {
			v, err := ListenVhostUser(path, testCID, opt)
			if err == nil {
				v.Serve()
			}
			return v, err
		},
		"vsock relay": func(path string, opt VhostOptions) (io.Closer, error) { return ListenVhostRelay(path, testCID, opt) },
		"port": func(path string, opt VhostOptions) (io.Closer, error) {
			in, err := ListenNet(path)
			if err != nil {
				return nil, err
			}
			p, err := NewNetPort(in, vhostnet.Config{Name: "port", MTU: 1500, Log: opt.Log, Post: func(f func()) bool { f(); return true }}, nil)
			if err == nil {
				p.Serve()
			}
			return p, err
		},
		"port relay": func(path string, opt VhostOptions) (io.Closer, error) {
			in, err := ListenNet(path)
			if err != nil {
				return nil, err
			}
			return NewNetRelay(in, "port", 1, 1500, opt)
		},
		"function": func(path string, opt VhostOptions) (io.Closer, error) {
			v := NewVfioUser("functions", testCID, opt)
			return v, v.AddFunction(vfioTestFunction, abi.FunctionVF, path, vfioTestLook)
		},
		"function relay": func(path string, opt VhostOptions) (io.Closer, error) {
			win, err := ivshmem.NewWindow(vfioTestFunction, abi.FunctionVF)
			if err != nil {
				return nil, err
			}
			return ServeVfioRelay(vfioTestFunction, win, path, vfioTestLook, opt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			said, log := newLines()
			path := filepath.Join(t.TempDir(), "s")
			s, err := serve(path, VhostOptions{Log: log})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(bytes.Repeat([]byte{0xff}, 64)); err != nil {
				t.Fatal(err)
			}
			if line := said.next(t); !strings.Contains(line, "QEMU disconnected") {
				t.Errorf("logged %s", line)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

package qemu

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// TestWhyQEMUIsGone: if a QEMU is disconnected because of a mistake, the reason is logged. Nothing
// is logged if it disconnects by itself or is disconnected by Close.
func TestWhyQEMUIsGone(t *testing.T) {
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
	door := newTurnstile(in, log, func(*net.UnixConn) error { return <-why })
	door.single = true // the second comes when the first is gone, however long that takes
	door.open()
	come(in)
	why <- nil
	come(in)
	why <- errors.New("nonsense")
	if line := said.next(t); !strings.Contains(line, "QEMU disconnected") || !strings.Contains(line, "nonsense") {
		t.Errorf("logged %s", line)
	}
	if err := door.close(); err != nil {
		t.Error(err)
	}

	in, here := newHanded(), make(chan struct{})
	door = newTurnstile(in, log, func(conn *net.UnixConn) error {
		close(here)
		_, err := io.ReadAll(conn)
		return err
	})
	door.open()
	come(in)
	<-here
	if err := door.close(); err != nil {
		t.Error(err)
	}
	if len(said) > 0 {
		t.Errorf("logged %s", <-said)
	}
}

// TestNonsenseIsLogged: each device that is served to a QEMU says why it has disconnected one.
func TestNonsenseIsLogged(t *testing.T) {
	for name, serve := range map[string]func(path string, opt VhostOptions) (io.Closer, error){
		"vsock":       func(path string, opt VhostOptions) (io.Closer, error) { return ListenVhostUser(path, testCID, opt) },
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

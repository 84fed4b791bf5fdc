package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLogQueue: a reader that does not read costs lines, which are counted, and
// nobody's time.
func TestLogQueue(t *testing.T) {
	r, w := io.Pipe()
	q := newLogQueue(w)
	line := []byte(strings.Repeat("x", 999) + "\n")
	const lines = 1000
	for range lines {
		if n, err := q.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if q.size > logQueueLimit {
		t.Errorf("%d bytes wait", q.size)
	}
	in, got := bufio.NewReader(r), 0
	for {
		s, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if s == string(line) {
			got++
			continue
		}
		var dropped int
		if _, err := fmt.Sscanf(s[strings.LastIndex(s, "lines="):], "lines=%d", &dropped); err != nil || got+dropped != lines || dropped == 0 {
			t.Errorf("%d lines and then %q, %v", got, s, err)
		}
		break
	}
	q.flush()
	if q.idle != nil {
		t.Error("the writer has not ended")
	}
	_, _ = q.Write([]byte("last\n"))
	if s, _ := in.ReadString('\n'); s != "last\n" {
		t.Errorf("%q", s)
	}
}

// fullPipe is a pipe that takes nothing more.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); ; {
		if _, err := unix.Write(fds[1], b); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fds[1], false); err != nil { // as a shell's is
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
	t.Cleanup(func() { r.Close() })
	return r, w
}

// TestStderrNotRead: a NIC whose standard error is a full pipe starts, serves its
// guests, gets another worker and ends as any other.
func TestStderrNotRead(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(1)
		r, w := fullPipe(t)
		cmd := exec.Command(vnic(t), "run", "-c", l.hosts[0].Config)
		cmd.Stderr = w
		var err error
		if l.nics[0], err = start("nic", cmd); err != nil {
			t.Fatal(err)
		}
		w.Close()
		n := l.nic(0, 0)
		l.joined()
		l.works()
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.nic(0, n.Worker)
		l.joined()
		l.works()
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		if err := l.nics[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.nics[0].done:
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
		l.nics[0] = nil
		_ = r.SetReadDeadline(time.Now().Add(testTime))
		if b, err := io.ReadAll(r); err != nil || len(b) == 0 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	})
}

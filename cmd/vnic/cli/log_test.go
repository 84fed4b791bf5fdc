package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLogNeverBlocks: if nobody reads standard error, lines are dropped and counted, and the writer
// does not wait.
func TestLogNeverBlocks(t *testing.T) {
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
	q.Flush()
	if q.idle != nil {
		t.Error("the writer has not ended")
	}
	_, _ = q.Write([]byte("last\n"))
	if s, _ := in.ReadString('\n'); s != "last\n" {
		t.Errorf("%q", s)
	}
}

// FullPipe returns a pipe whose buffer is full.
func FullPipe(t *testing.T) (r, w *os.File) {
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

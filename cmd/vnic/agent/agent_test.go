package agent

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// guest returns a stream that an agent serves.
func guest(t *testing.T) net.Conn {
	t.Helper()
	host, guest := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(guest)
		guest.Close()
	}()
	t.Cleanup(func() {
		host.Close()
		<-done
	})
	return host
}

// TestACommandRunsAsInAShell: input, both outputs and the exit status are those of the command.
func TestACommandRunsAsInAShell(t *testing.T) {
	for _, tc := range []struct {
		command        []string
		in, out, errs  string
		status, length int
	}{
		{command: []string{"cat"}, in: "hello", out: "hello"},
		{command: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, out: "out\n", errs: "err\n", status: 7},
		{command: []string{"sh", "-c", "kill -9 $$"}, status: 137},
		{command: []string{"true"}, in: strings.Repeat("not read ", 100000)},
		{command: []string{"/no/such/command"}, errs: "fork/exec /no/such/command: no such file or directory\n", status: 127},
		{command: []string{"no-such-command"}, errs: "exec: \"no-such-command\": executable file not found in $PATH\n", status: 127},
		{command: []string{"head", "-c", "1000000", "/dev/zero"}, length: 1000000},
	} {
		var out, errs bytes.Buffer
		status, err := Run(guest(t), tc.command, strings.NewReader(tc.in), &out, &errs)
		if err != nil || status != tc.status || errs.String() != tc.errs || tc.length == 0 && out.String() != tc.out || tc.length > 0 && out.Len() != tc.length {
			t.Errorf("%v: %v, status %d, %d bytes, %q", tc.command, err, status, out.Len(), errs.String())
		}
	}
}

// TestATerminalIsATerminal: the command has one of the size that the host's has, also when that changes.
func TestATerminalIsATerminal(t *testing.T) {
	c := guest(t)
	s := &stream{rw: c}
	if err := s.sendRequest(request{Command: []string{"sh", "-c", "stty size; read line; stty size; tty >/dev/null"}, Terminal: true, Rows: 11, Columns: 222}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for !strings.Contains(out.String(), "11 222") {
		kind, content, err := s.receive()
		if err != nil || kind != kindStdout {
			t.Fatalf("%c, %q, %v after %q", kind, content, err, out.String())
		}
		out.Write(content)
	}
	if err := errors.Join(s.send(kindWindow, []byte{0, 33, 0, 44}), s.send(kindStdin, []byte("\n"))); err != nil {
		t.Fatal(err)
	}
	if status, err := s.follow(&out, io.Discard); err != nil || status != 0 || !strings.Contains(out.String(), "33 44") {
		t.Errorf("%v, status %d, %q", err, status, out.String())
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// TestFilesGoBothWays: a file or a folder gets the name that is asked for, or its own within a folder.
func TestFilesGoBothWays(t *testing.T) {
	for name, copy := range map[string]func(c net.Conn, from, to string) error{"get": Get, "put": Put} {
		dir := t.TempDir()
		big := strings.Repeat("0123456789", 100000)
		write(t, dir+"/from/a", "a", 0o755)
		write(t, dir+"/from/sub/b", big, 0o644)
		if err := os.Symlink("a", dir+"/from/link"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", dir+"/from/dead"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir+"/into", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"/new", "/into"} {
			if err := copy(guest(t), dir+"/from", dir+to); err != nil {
				t.Errorf("%s to %s: %v", name, to, err)
			}
		}
		if err := copy(guest(t), dir+"/from/a", dir+"/into/b"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for path, want := range map[string]string{"new/a": "a", "new/sub/b": big, "new/link": "a", "into/from/a": "a", "into/from/sub/b": big, "into/b": "a"} {
			if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != want {
				t.Errorf("%s: %s has %d bytes, %v", name, path, len(b), err)
			}
		}
		if st, err := os.Stat(dir + "/into/b"); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
		if err := copy(guest(t), dir+"/nothing", dir+"/x"); err == nil || !strings.Contains(err.Error(), "nothing") {
			t.Errorf("%s of what there is not: %v", name, err)
		}
		if err := copy(guest(t), dir+"/from", dir+"/no/such/folder"); err == nil {
			t.Errorf("%s to a folder that there is not", name)
		}
	}
}

// TestAGuestWritesOnlyWhereItMay: whatever its archive names, nothing is written outside the folder
// that the user named.
func TestAGuestWritesOnlyWhereItMay(t *testing.T) {
	for _, h := range []tar.Header{
		{Name: "../outside", Typeflag: tar.TypeReg},
		{Name: "/outside", Typeflag: tar.TypeReg},
		{Name: "x/../../outside", Typeflag: tar.TypeReg},
		{Name: "link/outside", Typeflag: tar.TypeReg},
		{Name: "outside", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		{Name: "outside", Typeflag: tar.TypeChar},
		{Name: "../outside", Typeflag: tar.TypeDir},
	} {
		dir := t.TempDir()
		into := filepath.Join(dir, "into")
		if err := os.Mkdir(into, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, into+"/link"); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
			t.Fatal(err)
		}
		if err := usual.unpack(&b, into); err == nil && !strings.HasPrefix(h.Name, "/") {
			t.Errorf("%s is taken", h.Name)
		}
		if _, err := os.Lstat(filepath.Join(dir, "outside")); err == nil {
			t.Errorf("%s was written outside", h.Name)
		}
	}
}

// TestAGuestFillsNoDisk: an archive with more files or bytes than the limits is refused before more
// is written.
func TestAGuestFillsNoDisk(t *testing.T) {
	for name, sizes := range map[string][]int64{"too many files": {0, 0, 0, 0}, "too long": {60, 41}, "": {60, 40, 0}} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i, n := range sizes {
			if err := w.WriteHeader(&tar.Header{Name: string(rune('a' + i)), Typeflag: tar.TypeReg, Size: n}); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(make([]byte, n))
		}
		_ = w.Close()
		dir := t.TempDir()
		err := limits{bytes: 100, files: 3}.unpack(&b, dir)
		if (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", sizes, err)
		}
		made, _ := os.ReadDir(dir)
		if want := min(3, len(sizes)); name != "too long" && len(made) != want || name == "too long" && len(made) != 1 {
			t.Errorf("%v: %d files were made", sizes, len(made))
		}
	}
}

// FuzzAGuestsAnswer: whatever a guest answers, the host ends, with an error or a status.
func FuzzAGuestsAnswer(f *testing.F) {
	frame := func(kind byte, content string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))), content...)
	}
	f.Add(append(frame(kindStdout, "hello"), frame(kindExit, "\x00\x00\x00\x07")...))
	f.Add(frame(kindExit, "short"))
	f.Add([]byte{kindStdout, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, answer []byte) {
		s := &stream{rw: struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(answer), io.Discard}}
		if _, err := s.follow(io.Discard, io.Discard); err == nil && !bytes.Contains(answer, []byte{kindExit}) {
			t.Error("done without an exit status")
		}
		var b bytes.Buffer
		b.Write(answer)
		_ = usual.unpack(&b, t.TempDir())
	})
}

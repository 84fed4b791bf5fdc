package guestinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mounts stands for mount: it records its calls, and fails where the test says so.
type mounts struct {
	asked []string
	fails map[string]error // by target
}

func (m *mounts) do(source, target, kind string, flags uintptr, data string) error {
	m.asked = append(m.asked, fmt.Sprintf("%s %s %s", source, target, kind))
	return m.fails[target]
}

// script creates a program from a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// said returns what f and the programs that it runs write to the console.
func said(t *testing.T, f func()) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "console")
	console, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	os.Stderr = console
	f()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFileSystemsAreMountedInOrder: file systems are mounted in order. One that is mounted already
// stays; any other failure is an error that names the file system.
func TestFileSystemsAreMountedInOrder(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b", "b"), filepath.Join(dir, "c")
	list := []mountPoint{{"proc", a}, {"tmpfs", b}, {"tmpfs", c}}
	for _, tt := range []struct {
		fails error // of the second
		asked int
		says  string
	}{{nil, 3, ""}, {unix.EBUSY, 3, ""}, {unix.EPERM, 2, "mount tmpfs on " + b}} {
		m := &mounts{fails: map[string]error{b: tt.fails}}
		err := mountAll(m.do, list)
		if !errors.Is(err, tt.fails) && tt.says != "" || (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: %v", tt.fails, err)
		}
		if want := []string{"proc " + a + " proc", "tmpfs " + b + " tmpfs", "tmpfs " + c + " tmpfs"}; !slices.Equal(m.asked, want[:tt.asked]) {
			t.Errorf("%v: asked %q", tt.fails, m.asked)
		}
		if st, err := os.Stat(b); err != nil || !st.IsDir() {
			t.Errorf("no folder to mount on: %v", err)
		}
	}
	if err := os.WriteFile(c+"file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := &mounts{}
	if err := mountAll(m.do, []mountPoint{{"tmpfs", c + "file/x"}}); !errors.Is(err, unix.ENOTDIR) || len(m.asked) != 0 {
		t.Errorf("a folder that cannot be: %v, asked %q", err, m.asked)
	}
}

// TestStartScriptRunsInAWholeSystem: an image with a start script has more file systems, and the
// script runs when they are there. Neither a folder that cannot be shared nor a script that fails
// stops the guest.
func TestStartScriptRunsInAWholeSystem(t *testing.T) {
	mounted := []string{"devpts /dev/pts devpts", "tmpfs /dev/shm tmpfs", "tmpfs /run tmpfs", "share /share 9p"}
	for _, tt := range []struct {
		name, script string
		fails        map[string]error
		asked        []string
		says, err    string
	}{
		{"all well", "echo started >&2", nil, mounted, "vnic-init: started\nstarted\n", ""},
		{"nothing to share", "echo started >&2", map[string]error{"/share": unix.ENOENT}, mounted, "vnic-init: started\nstarted\n", ""},
		{
			"no sharing", "echo started >&2",
			map[string]error{"/share": unix.EPERM},
			mounted,
			"vnic-init: shared folder: operation not permitted\nvnic-init: started\nstarted\n", "",
		},
		{"a script that fails", "exit 7", nil, mounted, "SCRIPT: exit status 7", ""},
		{"no /run", "echo started >&2", map[string]error{"/run": unix.EPERM}, mounted[:3], "", "mount tmpfs on /run"},
	} {
		path, m := script(t, tt.script), &mounts{fails: tt.fails}
		var err error
		got := said(t, func() { err = prepareSystem(m.do, path) })
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !slices.Equal(m.asked, tt.asked) {
			t.Errorf("%s: mounted %q", tt.name, m.asked)
		}
		if want := strings.ReplaceAll(tt.says, "SCRIPT", path); !strings.Contains(got, want) || want == "" && got != "" || strings.HasPrefix(want, "vnic-init: started") && got != want {
			t.Errorf("%s: said %q", tt.name, got)
		}
	}
	m := &mounts{}
	if err := prepareSystem(m.do, "/nonexistent/script"); err != nil || len(m.asked) != 0 {
		t.Errorf("an image without a script: %v, mounted %q", err, m.asked)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := prepareSystem(m.do, plain); !errors.Is(err, unix.EACCES) {
		t.Errorf("a script that cannot be run: %v", err)
	}
}

// TestEachModuleIsTried: all modules of the list are tried. Each failure is reported, and the guest
// goes on.
func TestEachModuleIsTried(t *testing.T) {
	dir := t.TempDir()
	none, list := filepath.Join(dir, "no module"), filepath.Join(dir, "order")
	none = strings.ReplaceAll(none, " ", "-")
	if err := os.WriteFile(none, []byte("nothing of the kind"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte("/absent/a.ko\n"+none+"\n/absent/b.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	got := said(t, func() { err = loadModules(list) })
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"/absent/a.ko", none, "/absent/b.ko"} {
		if strings.Count(got, "vnic-init: module "+name+": ") != 1 {
			t.Errorf("of %s it says %q", name, got)
		}
	}
	if err := loadModules(list + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no list: %v", err)
	}
	if err := loadModule(none); err == nil {
		t.Error("a file that is no module was loaded")
	}
}

// TestTheDriverIsGivenTheIDOfWindows: the kernel's driver of functions, if it is loaded, is given the id of windows'
// devices.
func TestTheDriverIsGivenTheIDOfWindows(t *testing.T) {
	dir := t.TempDir()
	replace(t, &windowDriver, filepath.Join(dir, "vnic"))
	if err := OfferWindows(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a driver: %v", err)
	}
	if err := os.Mkdir(windowDriver, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := OfferWindows(); err != nil {
		t.Error(err)
	}
	if said, err := os.ReadFile(filepath.Join(windowDriver, "new_id")); err != nil || string(said) != "1af4 1110" {
		t.Errorf("the driver is told %q, %v", said, err)
	}
}

// replace sets a variable until the test ends.
func replace(t *testing.T, at *string, value string) {
	was := *at
	t.Cleanup(func() { *at = was })
	*at = value
}

// TestOutputGoesToTheSerialLine: the command's output goes to the second serial line if there is
// one, otherwise to the console. How the command ended is printed.
func TestOutputGoesToTheSerialLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"/nonexistent/ttyS1", file} { // which is no line, either
		replace(t, &outputDevice, device)
		for _, tt := range []struct{ command, output, err string }{
			{"echo out; echo $VNIC_GUEST; pwd", "out\n1\n/tmp\n", ""},
			{"exit 3", "", "/bin/sh -c exit 3: exit status 3"},
			{"kill -9 $$", "", "killed by killed"},
		} {
			var err error
			got := said(t, func() { err = runChild([]string{"/bin/sh", "-c", tt.command}) })
			if got != tt.output || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s with %s: %q, %v", tt.command, device, got, err)
			}
		}
	}
	if err := runChild([]string{"/nonexistent/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a command that there is not: %v", err)
	}
	replace(t, &outputDevice, file+"/x")
	if err := runChild([]string{"/bin/true"}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("an output that cannot be opened: %v", err)
	}
	replace(t, &shell, "/nonexistent/shell")
	if err := runChild(nil); err == nil || !strings.Contains(err.Error(), "this image has no shell") {
		t.Errorf("no command and no shell: %v", err)
	}
}

// terminal returns the two ends of a pseudo terminal.
func terminal(t *testing.T) (far *os.File, name string) {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { far.Close() })
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return far, fmt.Sprintf("/dev/pts/%d", n)
}

// TestTerminalIsNoSerialLine: output is not sent to a terminal that is no serial line.
func TestTerminalIsNoSerialLine(t *testing.T) {
	_, name := terminal(t)
	replace(t, &outputDevice, name)
	if f, err := openOutput(); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("%v, %v", f, err)
	}
}

// TestShellRunsOnTheConsole: without a command a login shell runs on the console, which is its
// terminal. How it ended is printed, and is no error.
func TestShellRunsOnTheConsole(t *testing.T) {
	far, name := terminal(t)
	replace(t, &consoleDevice, name)
	replace(t, &shell, script(t, `[ -t 0 ] && [ -t 1 ] && echo "in $PWD"; exit 5`))
	near, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0) // else what was written is gone with the shell
	if err != nil {
		t.Fatal(err)
	}
	got := said(t, func() { err = runChild(nil) })
	if err != nil || got != "vnic-init: -bash: exit status 5\n" {
		t.Errorf("%q, %v", got, err)
	}
	near.Close() // there is an end to what it has written
	b := make([]byte, len("in /"))
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "in /" {
		t.Errorf("the console has %q, %v", b, err)
	}
	replace(t, &shell, "/bin/true")
	got = said(t, func() { err = runChild(nil) })
	if err != nil || got != "" {
		t.Errorf("a shell that ends well: %q, %v", got, err)
	}
	replace(t, &consoleDevice, name+"x")
	if err := runChild(nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no console: %v", err)
	}
}

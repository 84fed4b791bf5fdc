package qemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Requests of the FUSE protocol (include/uapi/linux/fuse.h).
const (
	fuseLookup = 1
	fuseInit   = 26
	fuseOpen   = 14
)

// fuseProgram is the environment variable that makes the test binary a FUSE program.
const fuseProgram = "VNIC_TEST_FUSE"

// deadFile opens a file whose FUSE program answers until the file is open, and then
// never again. The program is another process: closing such a file waits for it, even in
// a process that is being killed.
func deadFile(t *testing.T) (fd int) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("VNIC_TEST_REQUIRE") != "" {
			t.Fatal("mounting FUSE needs root")
		}
		t.Skip("mounting FUSE needs root")
	}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no FUSE here:", err)
	}
	defer dev.Close()
	dir := t.TempDir()
	if err := unix.Mount("fuse", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev.Fd())); err != nil {
		t.Skip("no FUSE here:", err)
	}
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), fuseProgram+"=1")
	program.ExtraFiles = []*os.File{dev}
	err = program.Start()
	_ = dev.Close()
	if err != nil {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		t.Fatal(err)
	}
	fd, err = unix.Open(filepath.Join(dir, "ram"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	t.Cleanup(func() {
		_ = program.Process.Kill() // every request that waits fails
		_ = program.Wait()
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	})
	if err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// runFUSEProgram answers until the file is open, and stays longer than a test waits (soon).
func runFUSEProgram() {
	if err := answerUntilOpen(3); err != nil {
		fmt.Fprintln(os.Stderr, "fuse:", err)
		os.Exit(1)
	}
	time.Sleep(3 * time.Minute)
	os.Exit(0)
}

// answerUntilOpen is a FUSE program with one large file.
func answerUntilOpen(dev int) error {
	le := binary.LittleEndian
	buf := make([]byte, 1<<17)
	attr := func() []byte { // struct fuse_attr of a regular file of 1 GiB
		b := le.AppendUint64(nil, 2)
		b = le.AppendUint64(b, 1<<30)
		b = append(b, make([]byte, 44)...) // blocks, times
		b = le.AppendUint32(b, unix.S_IFREG|0o600)
		b = le.AppendUint32(b, 1)
		return append(b, make([]byte, 88-len(b))...)
	}
	for {
		if _, err := unix.Read(dev, buf); err != nil {
			return err
		}
		op, id := le.Uint32(buf[4:]), buf[8:16]
		var out []byte
		switch op {
		case fuseInit:
			out = le.AppendUint32(nil, 7)
			out = le.AppendUint32(out, 31)
			out = append(out, make([]byte, 56)...)
			le.PutUint32(out[20:], 1<<16) // max_write
		case fuseLookup: // an entry that is valid for no time: every fstat asks again
			out = le.AppendUint64(nil, 2)
			out = append(out, make([]byte, 32)...)
			out = append(out, attr()...)
		case fuseOpen:
			out = make([]byte, 16)
		}
		h := le.AppendUint32(nil, uint32(16+len(out)))
		errno := int32(0)
		if out == nil {
			errno = -int32(unix.ENOSYS)
		}
		h = le.AppendUint32(h, uint32(errno))
		h = append(h, id...)
		if _, err := unix.Write(dev, append(h, out...)); err != nil {
			return err
		}
		if op == fuseOpen {
			return nil
		}
	}
}

package qemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/queues"
)

func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func preambleOf(n uint32, rs ...clientRegion) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(preambleMagic), n)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, r := range rs {
		for _, v := range []uint64{r.addr, r.size, r.offset} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

// attachClient sends a preamble and returns the answer.
func attachClient(t *testing.T, path string, preamble []byte, fds ...int) (*net.UnixConn, uint32, string) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	status, reason := greet(t, c, preamble, fds...)
	return c, status, reason
}

// greet sends a preamble on a client's connection and returns the answer.
func greet(t *testing.T, c *net.UnixConn, preamble []byte, fds ...int) (uint32, string) {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(preamble, oob, nil); err != nil {
		t.Fatal(err)
	}
	var a [8]byte
	if _, err := io.ReadFull(c, a[:]); err != nil {
		t.Fatal(err)
	}
	reason := make([]byte, binary.LittleEndian.Uint32(a[4:]))
	if _, err := io.ReadFull(c, reason); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(a[:]), string(reason)
}

func listenUnix(t *testing.T) (queues.Attachment, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "u.sock")
	a, err := ListenUnix(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, path
}

func TestUnixSessionIsANetConn(t *testing.T) {
	a, path := listenUnix(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c, status, reason := attachClient(t, path, preambleOf(0))
		if status != 0 {
			return nil, nil, nil, errors.New(reason)
		}
		c2, err = a.Accept()
		return c, c2, func() { c.Close(); c2.Close() }, err
	})
}

func TestClientsMemoryIsMapped(t *testing.T) {
	a, path := listenUnix(t)
	fd := memfd(t, 1<<20, unix.F_SEAL_SHRINK)
	mem, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	// One file in two regions, not in order and far apart.
	_, status, reason := attachClient(t, path, preambleOf(2, clientRegion{1 << 40, 0x8000, 0}, clientRegion{1 << 32, 0x1000, 0x8000}), fd, fd)
	if status != 0 {
		t.Fatal(reason)
	}
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Identity(); p.Transport != "unix" || p.PID != os.Getpid() || p.UID != os.Getuid() {
		t.Errorf("peer %+v", p)
	}
	gone := make(chan struct{})
	s.Watch(func(rs queues.Regions) {
		if rs.Len() == 0 {
			close(gone)
			return
		}
		if err := memoryOf(rs).Write(1<<32+8, []byte("here")); err != nil {
			t.Error(err)
		}
	})
	if string(mem[0x8008:0x800c]) != "here" {
		t.Error("the write did not arrive")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	<-gone
}

// TestADriverInThisProcessIsAClient: it speaks as one does at a socket, is told apart from those, and finds nobody after
// the end.
func TestADriverInThisProcessIsAClient(t *testing.T) {
	a := NewInProcess(guestmem.NewBudget("drivers in this process", guestmem.Attachment))
	fd := memfd(t, 1<<20, unix.F_SEAL_SHRINK)
	c, err := a.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status, reason := greet(t, c, preambleOf(1, clientRegion{1 << 32, 0x1000, 0}), fd); status != 0 {
		t.Fatal(reason)
	}
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Identity(); p.Transport != queues.InProcess || p.PID != os.Getpid() || a.Addr() != "in-process:in-process" {
		t.Errorf("peer %+v of %s", p, a.Addr())
	}
	bytes := uint64(0)
	s.Watch(func(rs queues.Regions) { bytes = rs.Bytes() })()
	if bytes != 0x1000 {
		t.Errorf("%d bytes of memory", bytes)
	}
	refused, err := a.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := greet(t, refused, preambleOf(maxClientRegions+1)); status == 0 {
		t.Error("a driver with too many regions is served")
	}
	if err := errors.Join(s.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

func TestRefusedClientsHearTheReason(t *testing.T) {
	_, path := listenUnix(t)
	sealed := memfd(t, 1<<20, unix.F_SEAL_SHRINK)
	unsealed := memfd(t, 1<<20, unix.F_SEAL_GROW)
	readonly := memfd(t, 1<<20, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE)
	plain, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	one := clientRegion{0, 0x1000, 0}
	for _, tt := range []struct {
		name     string
		preamble []byte
		fds      []int
		want     string
	}{
		{"magic", append([]byte("VNICMEM2"), make([]byte, 8)...), nil, "VNICMEM1"},
		{"too many", preambleOf(65), nil, "limit"},
		{"no descriptors", preambleOf(1, one), nil, "0 descriptors"},
		{"more descriptors", preambleOf(1, one), []int{sealed, sealed}, "2 descriptors"},
		{"no seal", preambleOf(1, one), []int{unsealed}, "F_SEAL_SHRINK"},
		{"not a memfd", preambleOf(1, one), []int{int(plain.Fd())}, "not a memfd"},
		{"not writable", preambleOf(1, one), []int{readonly}, "mmap"},
		{"empty", preambleOf(1, clientRegion{0, 0, 0}), []int{sealed}, "no bytes"},
		{"huge", preambleOf(1, clientRegion{0, 1 << 41, 0}), []int{sealed}, "bytes"},
		{"not a page", preambleOf(1, clientRegion{1, 0x1000, 0}), []int{sealed}, "pages"},
		{"wraps", preambleOf(1, clientRegion{1<<64 - 0x1000, 0x2000, 0}), []int{sealed}, "wraps"},
		{"offset wraps", preambleOf(1, clientRegion{0, 0x2000, 1<<63 - 0x1000}), []int{sealed}, "wraps"},
		{"behind the file", preambleOf(1, clientRegion{0, 0x1000, 1 << 20}), []int{sealed}, "the file has only"},
		{"overlap", preambleOf(2, clientRegion{0, 0x2000, 0}, clientRegion{0x1000, 0x1000, 0}), []int{sealed, sealed}, "overlap"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, status, reason := attachClient(t, path, tt.preamble, tt.fds...)
			if status == 0 || !strings.Contains(reason, tt.want) {
				t.Errorf("status %d, reason %q, want %q in it", status, reason, tt.want)
			}
		})
	}
}

func TestCloseDoesNotWaitForASlowClient(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	a, path := listenUnix(t)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("VNIC")); err != nil {
		t.Fatal(err)
	}
	u := a.(*unixAttachment)
	for met := false; !met; runtime.Gosched() { // the handshake is under way
		u.mu.Lock()
		met = len(u.busy) == 1
		u.mu.Unlock()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("the end of the attachment is held against a client: %s", &log)
	}
	if _, err := a.Accept(); err != net.ErrClosed {
		t.Errorf("accept: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestStaleSocketFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	listen := func() error {
		a, err := ListenUnix(path, nil)
		if err == nil {
			err = a.Close()
		}
		return err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := listen(); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("file in the way: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := listen(); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("socket in use: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := listen(); err != nil { // stale now
		t.Errorf("stale socket: %v", err)
	}
	if _, err := ListenUnix(strings.Repeat("x", 108), nil); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("long path: %v", err)
	}
	// A socket that replaced ours stays.
	a, err := ListenUnix(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b, err := ListenUnix(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("closing the old one removed the new socket: %v", err)
	}
}

// TestImpossibleRegionsAreRefused: a region of a bare client must consist of whole pages, fit into
// the address space and its file, and not overlap another region.
func TestImpossibleRegionsAreRefused(t *testing.T) {
	before := []clientRegion{{0x10000, 0x10000, 0}, {0x40000, 0x1000, 0}}
	for _, tt := range []struct {
		r    clientRegion
		says string // "": it is taken
	}{
		{clientRegion{0, 0x1000, 0}, ""},
		{clientRegion{0, 0, 0}, "has no bytes"},
		{clientRegion{0x800, 0x1000, 0}, "whole 4096-byte pages"},
		{clientRegion{0, 0x1800, 0}, "whole 4096-byte pages"},
		{clientRegion{0, 0x1000, 0x800}, "whole 4096-byte pages"},
		{clientRegion{0, 0x10000, 0}, ""},
		{clientRegion{0, 0x11000, 0}, "overlap"},
		{clientRegion{0x1f000, 0x1000, 0}, "overlap"},
		{clientRegion{0x1f000, 0x2000, 0}, "overlap"},
		{clientRegion{0x20000, 0x20000, 0}, ""},
		{clientRegion{0x20000, 0x21000, 0}, "overlap"},
		{clientRegion{0, 0x100000, 0}, "overlap"},
		{clientRegion{0x12000, 0x1000, 0}, "overlap"},
		{clientRegion{1<<64 - 0x2000, 0x1000, 0}, ""},
		{clientRegion{1<<64 - 0x1000, 0x1000, 0}, "wraps"}, // the last page has no end
		{clientRegion{1<<64 - 0x1000, 0x2000, 0}, "wraps"},
		{clientRegion{0, 0x1000, 1<<63 - 0x2000}, ""},
		{clientRegion{0, 0x1000, 1<<63 - 0x1000}, "wraps"},
		{clientRegion{0, 0x1000, 1<<64 - 0x1000}, "wraps"},
		{clientRegion{0, 0x2000, 1<<64 - 0x1000}, "wraps"},
	} {
		checkSays(t, fmt.Sprintf("%#x", tt.r), tt.r.check(before), tt.says)
	}
}

// TestClientMayHaveManyRegions: a client may pass as many regions as the limit, each up to the end
// of its file.
func TestClientMayHaveManyRegions(t *testing.T) {
	_, path := listenUnix(t)
	fd := memfd(t, 0x2000, unix.F_SEAL_SHRINK)
	var rs []clientRegion
	var fds []int
	for i := range uint64(maxClientRegions) {
		rs, fds = append(rs, clientRegion{i << 20, 0x1000, 0x1000}), append(fds, fd)
	}
	if _, status, reason := attachClient(t, path, preambleOf(maxClientRegions, rs...), fds...); status != 0 {
		t.Errorf("%d regions: status %d, %s", len(rs), status, reason)
	}
	if _, status, reason := attachClient(t, path, preambleOf(maxClientRegions+1)); status == 0 || !strings.Contains(reason, "the limit is 64") {
		t.Errorf("one region more: status %d, %s", status, reason)
	}
}

// Clients that connect and send nothing delay nobody. The oldest are displaced, and a client that
// sends its preamble is served while the largest number of silent ones is connected.
func TestMuteClientsBlockNobody(t *testing.T) {
	a, path := listenUnix(t)
	u := a.(*unixAttachment)
	var mute []net.Conn
	for range 4 * maxHandshakes {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		mute = append(mute, c)
	}
	for range 3 {
		_, status, reason := attachClient(t, path, preambleOf(0))
		if status != 0 {
			t.Fatalf("refused: %s", reason)
		}
		u.mu.Lock()
		waiting := len(u.busy)
		u.mu.Unlock()
		if waiting < maxHandshakes-1 {
			t.Errorf("%d clients are waited for, want %d: the mute ones went first", waiting, maxHandshakes)
		}
		s, err := a.Accept()
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	for _, c := range mute[:2*maxHandshakes] {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Fatalf("an old mute client is still connected: %d bytes, %v", n, err)
		}
	}
}

// TestClientsWhoseFilesDoNotCloseAreBounded: clients that pass a file of a FUSE program which does not
// answer, and leave, take a bounded number of threads. Clients are served again when their files close.
func TestClientsWhoseFilesDoNotCloseAreBounded(t *testing.T) {
	a, path := listenUnix(t)
	u := a.(*unixAttachment)
	unfinished := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.unfinished
	}
	t.Run("full", func(t *testing.T) {
		file := deadFile(t)
		for range maxUnfinished {
			c, status, _ := attachClient(t, path, preambleOf(1, clientRegion{0, pageSize, 0}), file)
			if status == 0 {
				t.Fatal("the file was taken")
			}
			c.Close()
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("one client more: %d bytes, %v", n, err)
		}
		if n := unfinished(); n != maxUnfinished {
			t.Errorf("%d clients are unfinished, want %d", n, maxUnfinished)
		}
	})
	for unfinished() > 0 {
		time.Sleep(time.Millisecond)
	}
	if _, status, reason := attachClient(t, path, preambleOf(0)); status != 0 {
		t.Errorf("refused: %s", reason)
	}
}

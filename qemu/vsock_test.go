package qemu

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/net/nettest"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues"
)

// TestInsideKernelVsock needs a kernel with vsock loopback. TestKernelVsockInGuest
// provides one where the machine's own has none.
func TestInsideKernelVsock(t *testing.T) {
	if _, err := os.Stat("/dev/vsock"); err != nil {
		t.Skip("no /dev/vsock on this machine: TestKernelVsockInGuest runs this test in a Debian guest instead")
	}
	file := filepath.Join(t.TempDir(), "ram")
	if err := os.WriteFile(file, make([]byte, 0x4000), 0o600); err != nil {
		t.Fatal(err)
	}
	const port = 0x7fee0001
	a, err := ListenVsock(port, []GuestRAM{{CID: vsock.Local, File: file, Ranges: []RAMRange{{Addr: 1 << 32, Size: 0x1000, Offset: 0x2000}}}}, nil)
	if err != nil {
		t.Skipf("no kernel vsock: %v: TestKernelVsockInGuest runs this test in a Debian guest instead", err)
	}
	defer a.Close()
	probe, err := vsock.Dial(vsock.Local, port, nil)
	if err != nil {
		t.Skipf("no vsock loopback (modprobe vsock_loopback): %v: TestKernelVsockInGuest runs this test in a Debian guest instead", err)
	}
	probe.Close()
	if s, err := a.Accept(); err != nil {
		t.Fatal(err)
	} else {
		s.Close()
	}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = vsock.Dial(vsock.Local, port, nil); err != nil {
			return nil, nil, nil, err
		}
		s, err := a.Accept()
		if err != nil {
			return nil, nil, nil, err
		}
		if p := s.Identity(); p.CID != vsock.Local || p.Transport != "vsock" {
			t.Errorf("peer %+v", p)
		}
		s.Watch(func(rs queues.Regions) {
			if rs.Len() > 0 && (rs.Len() != 1 || rs.Bytes() != 0x1000) {
				t.Errorf("%d regions", rs.Len())
			}
		})
		return c1, s, func() { c1.Close(); s.Close() }, nil
	})
}

// TestKernelVsockInGuest runs TestInsideKernelVsock in a guest: this test's own
// program is the guest's init.
func TestKernelVsockInGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k := guestKernel(t, ctx)
	dir := t.TempDir()
	program, initrd := filepath.Join(dir, "init"), filepath.Join(dir, "initramfs")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	modules := append([]string{"vsock_loopback"}, image.VsockModules...)
	if err := (image.Initramfs{Kernel: k, Init: program, Modules: modules}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	p, err := Start(ctx, Machine{
		Kernel: k.Boot(), Initrd: initrd, Console: FileChardev(filepath.Join(dir, "console")),
		InitArgs: []string{"-test.v", "-test.run=^TestInsideKernelVsock$"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	b, err := io.ReadAll(p.Output())
	if out := string(b); err != nil || !strings.Contains(out, "--- PASS: TestInsideKernelVsock (") {
		t.Errorf("%v, the guest says:\n%s", err, out)
	}
}

func TestMemoryFilesOfGuestsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name   string
		guests []GuestRAM
		want   string
	}{
		{"twice", []GuestRAM{{CID: 3}, {CID: 3}}, "two memory files"},
		{"overlap", []GuestRAM{{CID: 3, Ranges: []RAMRange{{0, 0x2000, 0}, {0x1000, 0x1000, 0x2000}}}}, "overlap"},
		{"empty", []GuestRAM{{CID: 3, Ranges: []RAMRange{{0, 0, 0}}}}, "no bytes"},
	} {
		if a, err := ListenVsock(0x7fee0002, tt.guests, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
			if a != nil {
				a.Close()
			}
		}
	}
	guests := []GuestRAM{{CID: 3, Ranges: []RAMRange{{0, 0x1000, 0}}}, {CID: 4}}
	switch a, err := ListenVsock(0x7fee0002, guests, nil); {
	case err == nil:
		if addr := a.Addr(); addr != "vsock:2146304002" {
			t.Errorf("listens on %s", addr)
		}
		a.Close()
	case errors.Unwrap(err) == nil || !strings.Contains(err.Error(), "vsock port 2146304002: ") || !strings.Contains(err.Error(), "modprobe vhost_vsock"):
		t.Errorf("no kernel vsock: %v", err)
	}
}

func TestMemoryFileOfAGuestIsMapped(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "vnic-test") // memory of guests lies on tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "ram")
	if err := os.WriteFile(file, append(make([]byte, 0x2000), "at two pages"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 0x3000); err != nil {
		t.Fatal(err)
	}
	var r ram
	maps, err := kernelGuest{GuestRAM{CID: 3, File: file, Ranges: []RAMRange{{Addr: 1 << 32, Size: 0x1000, Offset: 0x2000}}}, guestmem.NewBudget("test", guestmem.Attachment)}.mapInto(&r)
	if err != nil {
		t.Fatal(err)
	}
	defer unmapAll(maps)
	var b [6]byte
	r.watch(func(rs queues.Regions) {
		if err := memoryOf(rs).Read(1<<32+3, b[:]); err != nil {
			t.Error(err)
		}
	})()
	if string(b[:]) != "two pa" {
		t.Errorf("%q", b)
	}
	for _, behind := range []RAMRange{{Size: 0x4000}, {Size: 0x2000, Offset: 0x2000}, {Size: 0x1000, Offset: 0x3000}} {
		if _, err := (kernelGuest{GuestRAM{CID: 3, File: file, Ranges: []RAMRange{behind}}, guestmem.NewBudget("test", guestmem.Attachment)}).mapInto(&r); err == nil || !strings.Contains(err.Error(), "the file has only") {
			t.Errorf("%+v, which is behind the file: %v", behind, err)
		}
	}
}

// listed is a listener that returns these connections and then net.ErrClosed.
type listed []net.Conn

func (l *listed) Accept() (net.Conn, error) {
	if len(*l) == 0 {
		return nil, net.ErrClosed
	}
	c := (*l)[0]
	*l = (*l)[1:]
	return c, nil
}

func (l *listed) Close() error   { return nil }
func (l *listed) Addr() net.Addr { return nil }

// failing is a listener whose Accept fails.
type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// from is a connection from a peer address.
type from struct {
	socket
	addr   net.Addr
	closed bool
}

func (c *from) RemoteAddr() net.Addr { return c.addr }
func (c *from) Close() error         { c.closed = true; return nil }

// TestRefusedGuestLeavesTheOthers: a peer without a vsock address is refused, and so is a guest
// whose memory file is missing. Other guests are still served.
func TestRefusedGuestLeavesTheOthers(t *testing.T) {
	stranger := &from{addr: &net.TCPAddr{}}
	broken := &from{addr: &vsock.Addr{ContextID: 7}}
	good := &from{addr: &vsock.Addr{ContextID: 8}}
	a := kernelAttachment{log: loglimit.Log{To: quiet().Log}, l: &listed{stranger, broken, good}, port: 5, rams: map[uint32]kernelGuest{7: {GuestRAM{CID: 7, File: t.TempDir() + "/none"}, nil}}}
	s, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Identity(); p.CID != 8 {
		t.Errorf("peer %+v", p)
	}
	if !stranger.closed || !broken.closed || good.closed {
		t.Errorf("closed: %v, %v and %v", stranger.closed, broken.closed, good.closed)
	}
	s.Close()
	if _, err := a.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	a.l = failing{}
	if _, err := a.Accept(); !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "vsock port 5: ") {
		t.Error(err)
	}
}

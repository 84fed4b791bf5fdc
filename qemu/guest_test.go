package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues"
)

// need skips a test this machine cannot run, or fails it where it must run.
func need(t *testing.T, ok bool, reason string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// guestKernel returns Debian's kernel if this machine can fetch and boot it.
func guestKernel(t *testing.T, ctx context.Context) image.Kernel {
	t.Helper()
	for _, tool := range []string{"qemu-system-x86_64", "apt-get", "dpkg-deb", "go"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, tool+" is not installed")
	}
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	need(t, err == nil, "no guest kernel: "+errText(err))
	return k
}

func buildGuest(t *testing.T, ctx context.Context) (kernel, initrd string) {
	t.Helper()
	k := guestKernel(t, ctx)
	dir := t.TempDir()
	program := filepath.Join(dir, "init")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./testguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	initrd = filepath.Join(dir, "initramfs")
	if err := (image.Initramfs{Kernel: k, Init: program, Modules: image.VsockModules}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	return k.Boot(), initrd
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checkGuest verifies one boot's session: identity, echo and memory.
func checkGuest(t *testing.T, s queues.Session) {
	t.Helper()
	if p := s.Identity(); p.CID != testCID {
		t.Fatalf("peer %+v, want CID %d", p, testCID)
	}
	if err := s.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var gpa uint64
	if err := binary.Read(s, binary.LittleEndian, &gpa); err != nil {
		t.Fatal(err)
	}
	var page [4096]byte
	stop := s.Watch(func(rs queues.Regions) {
		if rs.Len() > 0 {
			if err := memoryOf(rs).Read(gpa, page[:]); err != nil {
				t.Errorf("guest memory at %#x: %v", gpa, err)
			}
		}
	})
	defer stop()
	want := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, 0x0123456789abcdef), 512)
	if !bytes.Equal(page[:], want) {
		t.Fatalf("page at %#x starts with % x", gpa, page[:16])
	}
	r := rand.New(rand.NewSource(1))
	for _, n := range []int{1, 44, 3732, 3733, 65536, 300_000, 1 << 20} {
		sent := make([]byte, n)
		r.Read(sent)
		go func() { _, _ = s.Write(sent) }()
		got := make([]byte, n)
		if _, err := io.ReadFull(s, got); err != nil {
			t.Fatalf("echo of %d bytes: %v", n, err)
		}
		if !bytes.Equal(got, sent) {
			t.Fatalf("echo of %d bytes differs", n)
		}
	}
}

func acceptFrom(t *testing.T, ctx context.Context, p *Process, a queues.Attachment, console string) queues.Session {
	t.Helper()
	type result struct {
		s   queues.Session
		err error
	}
	ch := make(chan result, 1)
	go func() {
		s, err := a.Accept()
		ch <- result{s, err}
	}()
	select {
	case r := <-ch:
		if r.err != nil {
			t.Fatal(r.err)
		}
		t.Cleanup(func() { r.s.Close() })
		return r.s
	case <-p.Done():
	case <-ctx.Done():
	}
	b, _ := os.ReadFile(console)
	t.Fatalf("the guest did not connect; its console:\n%s", b)
	return nil
}

// roundTrip measures a small message there and back, for the log only.
func roundTrip(t *testing.T, s queues.Session) time.Duration {
	t.Helper()
	const n = 2000
	var b [16]byte
	at := time.Now()
	for range n {
		if _, err := s.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, b[:]); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(at) / n
}

// TestGuestBootsResetsAndComesBack boots a real guest, resets it, kills its QEMU and boots another
// on the same socket.
func TestGuestBootsResetsAndComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	kernel, initrd := buildGuest(t, ctx)
	v, a := startBackend(t)
	console := filepath.Join(t.TempDir(), "console")
	m := Machine{
		Name: "guest", Memory: 192, Kernel: kernel, Initrd: initrd,
		InitArgs: []string{"echo", strconv.Itoa(testPort)}, Vsock: v.Path(), Console: FileChardev(console),
	}
	start := func() *Process {
		p, err := Start(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Stop() })
		return p
	}
	at := time.Now()
	step := func(what string) {
		t.Logf("%6.2f s  %s", time.Since(at).Seconds(), what)
	}

	p := start()
	go func() { _, _ = io.Copy(io.Discard, p.Output()) }()
	s := acceptFrom(t, ctx, p, a, console)
	step("first boot connected")
	checkGuest(t, s)
	step("first boot checked")
	t.Logf("16 bytes there and back: %v", roundTrip(t, s))

	// A reset keeps QEMU and its connection; the session ends.
	for _, c := range []struct {
		name string
		args any
	}{{"set-action", map[string]string{"reboot": "reset"}}, {"system_reset", nil}} {
		if err := p.QMP().Execute(ctx, c.name, c.args, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Fatal("session survived the reset")
	}
	s = acceptFrom(t, ctx, p, a, console)
	step("after reset connected")
	checkGuest(t, s)
	step("after reset checked")

	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Fatal("session survived its QEMU")
	}

	p = start()
	lines := make(chan []string, 1)
	go func() {
		var got []string
		sc := bufio.NewScanner(p.Output())
		for sc.Scan() {
			got = append(got, sc.Text())
		}
		lines <- got
	}()
	s = acceptFrom(t, ctx, p, a, console)
	step("second QEMU connected")
	checkGuest(t, s)
	step("second QEMU checked")

	// The guest program ends when we stop sending; then the guest powers off.
	if err := s.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("after our end: %d bytes, %v", n, err)
	}
	if err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	step("guest powered off")
	got := <-lines
	if len(got) != 2 || !strings.HasPrefix(got[1], `{"echoed":`) || !json.Valid([]byte(got[0])) {
		t.Fatalf("output of the guest: %q", got)
	}
	if st := v.Stats(); st.Malformed+st.ForeignCID+st.BadType+st.CreditViolations+st.RepliesDropped != 0 {
		t.Errorf("a Linux guest caused %+v", st)
	}
}

package guest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu"
)

// The guest of TestLongPinnedMemory and the bare client on the host that it talks to.
const (
	pinGuest   = "192.168.100.11"
	pinPeer    = "192.168.100.12"
	pinService = 7
	pinChunk   = 64 << 10
	pinChunks  = 128 // 8 MiB to send from, and as many to read back to
)

// pinConfig is the configuration of host %[1]d; the other host is %[2]d.
const pinConfig = `
nic: {host: %[1]d}
uplink: {backend: memory, name: up%[1]d, mtu: 4500, address: 10.99.0.%[1]d/24}
rdma: {mtu: 4096}
cm: {listen: 127.0.0.1:%[3]d, identity: %[5]s}
peers:
  - {host: %[2]d, underlay: 10.99.0.%[2]d, cm: 127.0.0.1:%[4]d, identity: vnic://pin/host/%[2]d, tenants: [100]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.1%[1]d, guest: %[6]s}
attach:
  - %[7]s
`

// TestLongPinnedMemory boots a stock Debian guest that does RDMA from and to memory of guestlib
// while the kernel compacts memory and makes as many huge pages as it can. The memory's pages do
// not move (DRV-402). The guest's init is this test's own program, which runs
// TestInsidePinnedMemory.
func TestLongPinnedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	kernel, initrd := vnictest.GuestOfTest(t, ctx)
	dir, err := os.MkdirTemp("", "vnic-pin-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	keys, vhost, bare := filepath.Join(dir, "keys"), filepath.Join(dir, "guest"), filepath.Join(dir, "bare")
	if err := cmlink.Init(keys, "pin", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	ports, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	segment := fabric.New(4500)
	vnictest.ServeOn(t, segment, vnictest.WriteConfig(t, fmt.Sprintf(pinConfig, 1, 2, ports[0], ports[1], keys, "{cid: 1001}", "{type: vhost-user, socket: "+vhost+", cid: 1001}")))
	vnictest.ServeOn(t, segment, vnictest.WriteConfig(t, fmt.Sprintf(pinConfig, 2, 1, ports[1], ports[0], keys, "{unix: bare}", "{type: unix, name: bare, socket: "+bare+"}")))
	answer := make(chan error, 1)
	go func() { answer <- servePinned(ctx, "unix://"+bare) }()

	console := filepath.Join(dir, "console")
	p, err := qemu.Start(ctx, qemu.Machine{
		Name: "vnic-pinned", Memory: 512, CPUs: 2, Kernel: kernel, Initrd: initrd, Vsock: vhost, Console: qemu.FileChardev(console),
		InitArgs: []string{"-test.v", "-test.run=^TestInsidePinnedMemory$"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	go func() {
		<-ctx.Done()
		p.Stop()
	}()
	out, err := io.ReadAll(p.Output())
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInsidePinnedMemory") {
		log, _ := os.ReadFile(console)
		t.Errorf("%v; console:\n%s", err, log)
	}
	cancel()
	if err := <-answer; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// servePinned lets the guest write to and read from its memory until ctx ends.
func servePinned(ctx context.Context, url string) error {
	dev, err := guestlib.Open(ctx, url, guestlib.Options{Memory: 64 << 20})
	if err != nil {
		return err
	}
	defer dev.Close()
	e, err := newPinEnd(ctx, dev, pinChunk*pinChunks)
	if err != nil {
		return err
	}
	l, err := dev.Listen(ctx, pinService)
	if err != nil {
		return err
	}
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	where := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, e.mr.Addr()), e.mr.RKey())
	if err := r.Accept(ctx, e.qp, where); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// pinEnd is one end of the connection.
type pinEnd struct {
	cq *guestlib.CQ
	qp *guestlib.QP
	mr *guestlib.MR
}

func newPinEnd(ctx context.Context, dev *guestlib.Device, size int) (*pinEnd, error) {
	const access = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead
	e := &pinEnd{}
	pd, err := dev.AllocPD(ctx)
	if err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(ctx, 64); err != nil {
		return nil, err
	}
	if e.qp, err = pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, Access: access}); err != nil {
		return nil, err
	}
	buf, err := dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	e.mr, err = pd.RegMR(ctx, buf, access)
	return e, err
}

// do carries out one request.
func (e *pinEnd) do(ctx context.Context, wr guestlib.SendWR) error {
	wr.Flags |= guestlib.Signaled
	if err := e.qp.PostSend(&wr); err != nil {
		return err
	}
	var wc [1]guestlib.WC
	for {
		if n, err := e.cq.Poll(wc[:]); err != nil || n == 1 {
			return errors.Join(err, wc[0].Err())
		}
		if err := e.cq.Wait(ctx); err != nil {
			return err
		}
	}
}

// Other regions, to compare with: mlocked memory, as a driver would use that does not pin.
const (
	huge        = 2 << 20
	mlockedSize = 24 << 20
	fillerSize  = 160 << 20
)

// TestInsidePinnedMemory runs in the guest of TestLongPinnedMemory.
func TestInsidePinnedMemory(t *testing.T) {
	if os.Getenv("VNIC_GUEST") == "" {
		t.Skip("runs in the guest of TestLongPinnedMemory")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Minute)
	defer cancel()
	dev, err := guestlib.Open(ctx, "vsock://2:7000", guestlib.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	small := mapAnonymous(t, mlockedSize, unix.MADV_NOHUGEPAGE) // compaction moves it, page by page
	large := mapAnonymous(t, mlockedSize, unix.MADV_NOHUGEPAGE) // is collapsed into huge pages
	e, err := newPinEnd(ctx, dev, 2*pinChunk*pinChunks)
	if err != nil {
		t.Fatal(err)
	}
	frames := func(mem []byte) []uint64 { return readFrames(t, mem) }
	arena := e.mr.Bytes()
	arenaBefore := frames(arena)

	peer, err := guestlib.ParseGID(pinPeer)
	if err != nil {
		t.Fatal(err)
	}
	where, err := dev.Connect(ctx, e.qp, peer, pinService, nil)
	if err != nil {
		t.Fatal(err)
	}
	var verified atomic.Uint64
	stop, traffic := make(chan struct{}), make(chan error, 1)
	go func() {
		traffic <- e.traffic(ctx, stop, &verified, binary.LittleEndian.Uint64(where), binary.LittleEndian.Uint32(where[8:]))
	}()
	alive := func(phase string) {
		t.Helper()
		for before, end := verified.Load(), time.Now().Add(time.Minute); verified.Load() < before+4*pinChunk; time.Sleep(time.Millisecond) {
			select {
			case err := <-traffic:
				t.Fatalf("%s: traffic: %v", phase, err)
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the traffic stands still", phase)
			}
		}
		if n := moved(arenaBefore, frames(arena)); n != 0 {
			t.Fatalf("%s: %d of %d pages of the arena moved", phase, n, len(arenaBefore))
		}
	}
	alive("before")

	// Compaction: fill memory and leave holes, to which movable pages can go.
	before := frames(small)
	compacted := 0
	for round := range 6 {
		filler := mapAnonymous(t, fillerSize, unix.MADV_NOHUGEPAGE)
		for at := round % 2 * 4096; at < len(filler); at += 2 * 4096 {
			if err := unix.Madvise(filler[at:at+4096], unix.MADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
		}
		setKernel(t, "/proc/sys/vm/compact_memory", "1")
		alive(fmt.Sprintf("compaction %d", round))
		compacted = max(compacted, moved(before, frames(small)))
		if err := unix.Munmap(filler); err != nil {
			t.Fatal(err)
		}
		setKernel(t, "/proc/sys/vm/compact_memory", "1")
		alive(fmt.Sprintf("compaction %d, holes closed", round))
		compacted = max(compacted, moved(before, frames(small)))
	}
	t.Logf("compaction moved %d of %d mlocked pages, %d of %d pages of the arena", compacted, len(before), 0, len(arenaBefore))
	if compacted == 0 {
		t.Error("compaction moved nothing: the test shows nothing")
	}

	// Huge pages: by the kernel's thread everywhere, and on demand. The arena's own advice against
	// huge pages is undone as well, so that only the pin keeps its pages in place.
	const thp = "/sys/kernel/mm/transparent_hugepage/"
	for file, value := range map[string]string{
		"enabled": "always", "defrag": "always", "khugepaged/defrag": "1", "khugepaged/scan_sleep_millisecs": "0", "khugepaged/alloc_sleep_millisecs": "0",
		"khugepaged/pages_to_scan": "65536", "khugepaged/max_ptes_none": "511", "khugepaged/max_ptes_shared": "511", "khugepaged/max_ptes_swap": "64",
	} {
		setKernel(t, thp+file, value)
	}
	before = frames(large)
	if err := errors.Join(unix.Madvise(large, unix.MADV_HUGEPAGE), unix.Madvise(arena, unix.MADV_HUGEPAGE)); err != nil {
		t.Fatal(err)
	}
	scans := kernelNumber(t, thp+"khugepaged/full_scans")
	for end := time.Now().Add(20 * time.Second); kernelNumber(t, thp+"khugepaged/full_scans") < scans+2 && time.Now().Before(end); {
		alive("khugepaged")
		setKernel(t, "/proc/sys/vm/compact_memory", "1")
	}
	byThread := moved(before, frames(large))
	refused := 0
	for _, mem := range [][]byte{large, arena} {
		for at := int(-mappedAt(mem) % huge); at+huge <= len(mem); at += huge {
			const madvCollapse = 25 // MADV_COLLAPSE, Linux 6.1
			if err := unix.Madvise(mem[at:at+huge], madvCollapse); err != nil {
				refused++
			}
			alive("MADV_COLLAPSE")
		}
	}
	collapsed := moved(before, frames(large))
	t.Logf("khugepaged moved %d of %d mlocked pages in %d scans, with MADV_COLLAPSE it is %d (%d refusals); %d of the arena",
		byThread, len(before), kernelNumber(t, thp+"khugepaged/full_scans")-scans, collapsed, refused, moved(arenaBefore, frames(arena)))
	if collapsed == 0 {
		t.Error("no huge page came about: the test shows nothing")
	}
	alive("after")
	close(stop)
	if err := <-traffic; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB written, read back and compared meanwhile", verified.Load()>>20)
}

// traffic writes chunks of new data to the peer, reads them back into other pages and compares
// them, until it is stopped. If a page had moved, the device would read or write the place where it
// was before.
func (e *pinEnd) traffic(ctx context.Context, stop <-chan struct{}, verified *atomic.Uint64, addr uint64, rkey uint32) error {
	r := rand.NewChaCha8([32]byte{1})
	mem, half := e.mr.Bytes(), pinChunk*pinChunks
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		at := i * 37 % pinChunks * pinChunk
		_, _ = r.Read(mem[at : at+pinChunk])
		remote := addr + uint64(at)
		if err := e.do(ctx, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{e.mr.SGE(at, pinChunk)}, RemoteAddr: remote, RKey: rkey}); err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
		if err := e.do(ctx, guestlib.SendWR{Opcode: guestlib.Read, SGL: []guestlib.SGE{e.mr.SGE(half+at, pinChunk)}, RemoteAddr: remote, RKey: rkey}); err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if want, got := mem[at:at+pinChunk], mem[half+at:half+at+pinChunk]; string(want) != string(got) {
			return fmt.Errorf("chunk %d at %#x came back different", i, at)
		}
		verified.Add(pinChunk)
	}
}

// mapAnonymous returns mlocked memory.
func mapAnonymous(t *testing.T, size, advice int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		err = unix.Madvise(mem, advice)
	}
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	}
	if err == nil && size == mlockedSize {
		err = unix.Mlock(mem)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// readFrames returns the page frame numbers of mem.
func readFrames(t *testing.T, mem []byte) []uint64 {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw := make([]byte, len(mem)/4096*8)
	if _, err := f.ReadAt(raw, int64(mappedAt(mem)/4096*8)); err != nil {
		t.Fatal(err)
	}
	frames := make([]uint64, len(raw)/8)
	for i := range frames {
		frames[i] = binary.NativeEndian.Uint64(raw[8*i:]) & (1<<55 - 1)
	}
	return frames
}

func moved(before, after []uint64) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

func setKernel(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func kernelNumber(t *testing.T, path string) (n int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(b), &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

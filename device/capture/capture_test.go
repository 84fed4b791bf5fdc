package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// readAll decodes a capture with gopacket's reader.
func readAll(t *testing.T, r io.Reader) (*pcapgo.NgReader, []string) {
	t.Helper()
	ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		data, ci, opts, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return ng, got
		}
		if err != nil {
			t.Fatal(err)
		}
		dir := "?"
		if opts.Flags != nil {
			dir = map[pcapgo.NgEpbFlag]string{pcapgo.NgEpbFlagDirectionInbound: "in", pcapgo.NgEpbFlagDirectionOutbound: "out"}[opts.Flags.Direction]
		}
		got = append(got, fmt.Sprintf("%d %s %d %d/%d %x %q", ci.InterfaceIndex, dir, ci.Timestamp.UnixNano(), len(data), ci.Length, data[:min(4, len(data))], opts.Comments))
	}
}

func TestACaptureFileHoldsThePackets(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "x.pcapng")
	c, err := Create(path, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	frame := bytes.Repeat([]byte{0xab}, 61)
	c.Packet(Sealed, Out, 1_700_000_000_123_456_789, frame, "QP 5")
	frame[0] = 0 // the caller uses its buffer again
	c.Packet(Clear, In, 1_700_000_001_000_000_001, frame[:40], "")
	c.Packet(Sealed, In, 3, make([]byte, snapLen+10), "")
	c.Packet(7, In, 3, frame, "no such interface")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.Packet(Sealed, Out, 4, frame, "after Close")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	ng, got := readAll(t, f)
	want := []string{
		`0 out 1700000000123456789 61/61 abababab ["QP 5"]`,
		`1 in 1700000001000000001 40/40 00ababab []`,
		`0 in 3 65568/65578 00000000 []`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("packets (-want +got):\n%s", d)
	}
	for i, w := range []struct {
		name string
		link layers.LinkType
		n    uint64
	}{{"sealed", layers.LinkTypeEthernet, 2}, {"clear", layers.LinkTypeRaw, 1}} {
		nif, err := ng.Interface(i)
		if err != nil || nif.Name != w.name || nif.LinkType != w.link || nif.Statistics.PacketsReceived != w.n || nif.Statistics.PacketsDropped != 0 {
			t.Errorf("interface %d: %+v, %v", i, nif, err)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x.2.pcapng", "x.3.pcapng"} { // what is there stays
		next, err := Create(path, config.CaptureBoth)
		if err != nil || next.Path() != filepath.Join(filepath.Dir(path), name) || next.Close() != nil {
			t.Errorf("%v, want %s: %v", next, name, err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
		t.Errorf("the first file was changed: %v", err)
	}
}

// TestAFullDiskEndsACaptureWithAReason: a capture that cannot be started leaves no file, and one that cannot continue
// reports why.
func TestAFullDiskEndsACaptureWithAReason(t *testing.T) {
	c, err := New(&full{left: 1 << 10}, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		c.Packet(Sealed, Out, 1, make([]byte, 100), "")
	}
	<-c.Failed()
	if err := c.Err(); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := c.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if _, err := Create("/dev/full/x", config.CaptureBoth); err == nil {
		t.Error("made a file in a device")
	}
}

// full is a writer that accepts this many bytes.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, syscall.ENOSPC
	}
	return len(b), nil
}

// TestEachPortHasAnInterfaceOfItsOwn: ports have interfaces of their own, also those added while the capture runs, with or
// without packets.
func TestEachPortHasAnInterfaceOfItsOwn(t *testing.T) {
	var file bytes.Buffer
	c, err := New(&file, config.CaptureBoth, Port{"vf1", "port of pf0.vf1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Packet(2, In, 1, []byte("from guest"), "x")
	later, idle := c.AddPort(Port{"vf2", ""}), c.AddPort(Port{"vf3", ""})
	c.Parts(later, Out, 2, "", []byte("to "), []byte("guest"))
	c.Parts(later, Out, 3, "", make([]byte, snapLen-1), []byte("longer"), []byte("too long"))
	c.Packet(idle+1, In, 3, []byte("no such interface"), "")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ng, got := readAll(t, &file)
	want := []string{`2 in 1 10/10 66726f6d ["x"]`, `3 out 2 8/8 746f2067 []`, `3 out 3 65568/65581 00000000 []`}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("packets (-want +got):\n%s", d)
	}
	for i, w := range []struct {
		name string
		n    uint64
	}{{"sealed", 0}, {"clear", 0}, {"vf1", 1}, {"vf2", 2}, {"vf3", 0}} {
		nif, err := ng.Interface(i)
		if err != nil || nif.Name != w.name || nif.Statistics.PacketsReceived != w.n || i > Clear && nif.LinkType != layers.LinkTypeEthernet {
			t.Errorf("interface %d: %+v, %v", i, nif, err)
		}
	}
}

// TestTcpdumpReadsACaptureOfPorts: a capture of ports alone has interfaces of one type, which tcpdump
// needs.
func TestTcpdumpReadsACaptureOfPorts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := New(f, "", Port{"vf1", "port of pf0.vf1"}, Port{"vf2", "port of pf0.vf2"})
	if err != nil {
		t.Fatal(err)
	}
	frame := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 1, 0x08, 0x06)
	c.Packet(Clear+1, In, 1, append(frame, make([]byte, 28)...), "")
	c.Packet(Clear+2, Out, 2, append(frame, make([]byte, 28)...), "")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	requireTool(t, "tcpdump")
	out, err := exec.Command("tcpdump", "-enr", file).CombinedOutput()
	if err != nil || bytes.Count(out, []byte("02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff")) != 2 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPacketsAreReadableWhileTheCaptureRuns: captured packets can be read while the capture runs.
func TestPacketsAreReadableWhileTheCaptureRuns(t *testing.T) {
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{})
		if err == nil {
			_, _, err = ng.ReadPacketData()
		}
		got <- err
		_, _ = io.Copy(io.Discard, r)
	}()
	c, err := New(w, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	c.Packet(Sealed, Out, 1, []byte("frame"), "")
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("no packet")
	}
	if err := errors.Join(c.Close(), w.Close()); err != nil {
		t.Error(err)
	}
}

// gate is a writer that waits until it is opened.
type gate struct {
	mu   sync.Mutex
	open *sync.Cond
	yes  bool
	err  error
	n    int // writes
	bytes.Buffer
}

func newGate() *gate {
	g := &gate{yes: true}
	g.open = sync.NewCond(&g.mu)
	return g
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	g.yes = open
	g.mu.Unlock()
	g.open.Broadcast()
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.yes {
		g.open.Wait()
	}
	g.n++
	if g.err != nil {
		return 0, g.err
	}
	return g.Buffer.Write(b)
}

func TestNeverBlocksAndCountsDrops(t *testing.T) {
	g := newGate()
	c, err := New(g, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	g.set(false)
	const n = slots + 5000
	for range n {
		c.Packet(Sealed, In, 1, []byte("frame"), "")
	}
	drops := c.Drops()
	if drops < 4000 || drops > 5000 {
		t.Errorf("%d drops", drops)
	}
	g.set(true)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ng, got := readAll(t, &g.Buffer)
	if uint64(len(got))+drops != n {
		t.Errorf("%d written and %d dropped of %d", len(got), drops, n)
	}
	if nif, err := ng.Interface(0); err != nil || nif.Statistics.PacketsDropped != drops || nif.Statistics.PacketsReceived != n {
		t.Errorf("statistics %+v", nif.Statistics)
	}
	if g.n > len(got)/8 {
		t.Errorf("%d writes for %d packets, most of which waited", g.n, len(got))
	}
}

func TestWriteErrorIsReported(t *testing.T) {
	g := newGate()
	c, err := New(g, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.err = errors.New("disk full")
	g.mu.Unlock()
	for range 3 * slots {
		c.Packet(Sealed, In, 1, make([]byte, 1000), "")
	}
	if err := c.Close(); err == nil || !errors.Is(err, g.err) {
		t.Errorf("Close: %v", err)
	}
	if c.Drops() == 0 {
		t.Error("lost packets are not counted")
	}
	if _, err := New(g, config.CaptureBoth); err == nil {
		t.Error("New on a full disk")
	}
}

func TestANilCaptureDoesNothing(t *testing.T) {
	var c *Capture
	c.Packet(Sealed, In, 1, nil, "")
	if c.Drops() != 0 || c.Close() != nil {
		t.Error("a nil capture does something")
	}
}

func TestACaptureMayEndWhileThreadsUseIt(t *testing.T) {
	c, err := New(io.Discard, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 5000 {
				c.Packet(i%2, Out, time.Now().UnixNano(), []byte{1, 2, 3}, "")
			}
		})
	}
	time.Sleep(time.Millisecond)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestPacketDoesNotAllocate(t *testing.T) {
	g := newGate()
	c, err := New(g, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 1500)
	for range slots { // every record gets its memory
		c.Packet(Sealed, Out, 1, frame, "")
	}
	for len(c.free) < slots {
		time.Sleep(time.Millisecond)
	}
	g.set(false)
	c.Packet(Sealed, Out, 1, frame, "") // keeps the writer busy
	for len(c.queue) > 0 {
		time.Sleep(time.Millisecond)
	}
	if n := allocs.PerRun(1000, func() { c.Packet(Sealed, Out, 1, frame, "") }); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
	g.set(true)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkPacket(b *testing.B) {
	c, err := New(io.Discard, config.CaptureBoth)
	if err != nil {
		b.Fatal(err)
	}
	frame := make([]byte, 1500)
	b.SetBytes(1500)
	for b.Loop() {
		c.Packet(Sealed, Out, 1, frame, "")
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
}

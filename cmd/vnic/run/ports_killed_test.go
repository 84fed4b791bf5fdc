package run_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// TestPortsLoseNoBufferWhenWorkersAreKilled kills the worker of a NIC several times, and upgrades
// it once, while two guests on ports of one shard send frames as fast as they can. Short frames are
// copied twice; the ends of long ones go from guest to guest. Every frame that arrives is complete
// and correct, arrives once and in order. Traffic goes on, and in the end all buffers are back.
func TestPortsLoseNoBufferWhenWorkersAreKilled(t *testing.T) {
	vnictest.RequireRoot(t)
	for name, o := range map[string][2]vhosttest.NetOptions{
		"packed":           {{Packed: true, EventIdx: true}, {Packed: true, Indirect: true, Split: 5000}},
		"split and packed": {{Indirect: true, Split: 5000}, {Packed: true}},
	} {
		t.Run(name, func(t *testing.T) { netns.Run(t, func() { killUnderTraffic(t, o) }) })
	}
}

func killUnderTraffic(t *testing.T, o [2]vhosttest.NetOptions) {
	dir, err := os.MkdirTemp("", "ports") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := vnictest.PortConfig(t, dir, 1, 2, 1, "")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("nic: {", "nic: {shards: 1, ", "backend: memory, ", "", "mtu: 4500", "mtu: 9500", "mtu: 1500", "mtu: 9000").Replace(string(b))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	p, err := labkit.Start("nic", log, vnictest.Program(t), "run", "-c", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p.Stop(20 * time.Second)
		if t.Failed() {
			said, _ := os.ReadFile(log)
			t.Logf("%s", said)
		}
	}()
	socket := filepath.Join(dir, "ctl1")
	worker := func(not int) (pid int) {
		t.Helper()
		vnictest.Eventually(t, "a worker", func() error {
			n, err := control.NewClient(socket).NIC(t.Context())
			if err == nil && (n.Worker == not || n.PID != p.Cmd.Process.Pid) {
				err = fmt.Errorf("%+v", n)
			}
			pid = n.Worker
			return err
		})
		return pid
	}
	now := worker(0)
	var s [2]*vnictest.PortGuest
	for i := range s {
		o[i].Merge, o[i].Offloads, o[i].Size, o[i].SendSize = true, true, 1024, 64
		s[i] = vnictest.NewPortGuest(t, dir, 1, i+1, o[i])
	}
	var talkers [2]*talker
	for i := range s {
		s[i].Ask(s[1-i].IP)
		talkers[i] = &talker{PortGuest: s[i], to: s[1-i].IP}
	}
	for i := range talkers {
		talkers[i].peer = talkers[1-i]
	}
	stop := converse(t, talkers)
	defer stop()
	for i := range 6 {
		goesOn(t, talkers)
		if i == 3 {
			if out, errs, code := vnictest.Run(t, "upgrade", "-s", socket); code != 0 {
				t.Fatalf("exit status %d: %s%s", code, out, errs)
			}
		} else if err := syscall.Kill(now, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		now = worker(now)
	}
	goesOn(t, talkers)
	stop()
	for i, a := range talkers {
		vnictest.Eventually(t, "all buffers back", func() error {
			for took := true; took && err == nil; {
				took, err = a.take()
			}
			if err != nil {
				t.Fatal(err)
			}
			if !a.Guest.Idle(0) {
				return fmt.Errorf("guest %d misses some", i+1)
			}
			return nil
		})
		if !a.Guest.Whole() {
			t.Errorf("guest %d: receive buffers are missing", i+1)
		}
		t.Logf("guest %d: %d sent, %d short and %d long ones arrived", i+1, a.sent, a.short.Load(), a.long.Load())
	}
}

// converse lets the guests send and receive, each on its own goroutine, until stop is called.
func converse(t *testing.T, talkers [2]*talker) (stop func()) {
	var ended atomic.Bool
	var all sync.WaitGroup
	for _, a := range talkers {
		all.Go(func() {
			for !ended.Load() {
				posted := a.post()
				took, err := a.take()
				if err != nil {
					a.failed.Store(&err)
					return
				}
				if !posted && !took {
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
	}
	return func() {
		ended.Store(true)
		all.Wait()
	}
}

// goesOn waits until many more frames of both kinds have arrived at both ends.
func goesOn(t *testing.T, talkers [2]*talker) {
	t.Helper()
	for i, a := range talkers {
		short, long := a.short.Load(), a.long.Load()
		vnictest.Eventually(t, "traffic", func() error {
			if err := a.failed.Load(); err != nil {
				t.Fatalf("guest %d: %v", i+1, *err)
			}
			if a.short.Load() < short+50 || a.long.Load() < long+50 {
				return fmt.Errorf("guest %d has %d short and %d long ones more", i+1, a.short.Load()-short, a.long.Load()-long)
			}
			return nil
		})
	}
}

// talker is a guest that sends frames which its peer can check, and checks the peer's.
type talker struct {
	*vnictest.PortGuest
	to          netip.Addr
	peer        *talker
	sent, last  uint32 // serial numbers
	short, long atomic.Uint64
	failed      atomic.Pointer[error]
}

// letter returns the frame with a serial number. Its length and content follow from the number.
func (a *talker) letter(serial uint32) (h vhosttest.Header, frame []byte) {
	n := int(serial)
	switch serial % 4 {
	case 0:
		n = 20 + n*37%1400
	case 1:
		n = 2000 + n*53%2000 // in several buffers
	case 2:
		n = 4200 + n*101%4700 // one packet
	default:
		n = 9000 + n*977%56_000
		h = vhosttest.Header{1, 5, 42, 0, 0x78, 5, 34, 0, 6} // datagrams of 1400 bytes; their checksums are left open
	}
	at := int(serial) * 61 % (len(chaff) - n)
	return h, a.UDP(a.to, append(binary.BigEndian.AppendUint32(nil, serial), chaff[at:at+n]...))
}

// chaff is the data from which frames are cut.
var chaff = func() []byte {
	b, rng := make([]byte, 1<<18), rand.New(rand.NewPCG(3, 3))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

// post sends until the ring is full.
func (a *talker) post() (some bool) {
	for range 32 {
		h, f := a.letter(a.sent + 1)
		if !a.Guest.Transmit(0, h, f) {
			break
		}
		a.sent++
		some = true
	}
	return some
}

// take receives and checks what has arrived.
func (a *talker) take() (some bool, err error) {
	for {
		h, f, err := a.Guest.Receive(0)
		if err != nil || f == nil {
			return some, err
		}
		some = true
		if f[12] == 8 && f[13] == 6 { // ARP
			continue
		}
		if len(f) < 46 {
			return some, fmt.Errorf("a frame of %d bytes: %x", len(f), f)
		}
		serial := binary.BigEndian.Uint32(f[42:])
		if serial <= a.last {
			return some, fmt.Errorf("frame %d after frame %d", serial, a.last)
		}
		a.last = serial
		wantHeader, want := a.peer.letter(serial)
		if len(f) != len(want) || !bytes.Equal(f[14:], want[14:]) || h[1] != wantHeader[1] {
			return some, fmt.Errorf("frame %d of %d bytes: got %d, header %v; first %x", serial, len(want), len(f), h, f[:60])
		}
		if len(f) < 4096 {
			a.short.Add(1)
		} else {
			a.long.Add(1)
		}
	}
}

package guestlib

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// testWindow is a window made of files, and the device's side of its bell ring.
func testWindow(t *testing.T) (*window.Window, *ring.Consumer) {
	t.Helper()
	dir := t.TempDir()
	dev := filepath.Join(dir, "0000:00:08.0")
	if err := os.Mkdir(dev, 0o700); err != nil {
		t.Fatal(err)
	}
	const at = 4096
	layout := ring.QueueLayout(abi.WindowBellsLog2, 4)
	shared := make([]byte, abi.WindowSize)
	(&abi.WindowHeader{Magic: abi.Magic, Major: abi.VersionMajor, Length: abi.WindowSize, Function: 1, FirstCap: 64}).Marshal(shared)
	(&abi.Capability{Type: abi.CapBells, Version: 1, Offset: at, Length: uint32(layout.Size())}).Marshal(shared[64:])
	for name, b := range map[string][]byte{"vendor": []byte("0x1af4\n"), "device": []byte("0x1110\n"), "enable": nil, "resource0": make([]byte, 4096), "resource2": shared} {
		if err := os.WriteFile(filepath.Join(dev, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := window.OpenIn(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dev, "resource2"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return w, ring.NewConsumer(ring.Mem(m[at:]), layout)
}

// TestDoorbellsWaitForRoomInTheWindow: if more queues ring than the window has room for records, the others wait
// until there is room. All records come once, in order, through the window, and none over the
// stream.
func TestDoorbellsWaitForRoomInTheWindow(t *testing.T) {
	w, device := testWindow(t)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	s := newStream(ours)
	s.useWindow(w)
	s.start(time.Hour, time.Hour)
	message := make(chan abi.MsgType, 1)
	go func() {
		h, _, err := abi.ReadMessage(theirs, make([]byte, abi.MaxMessage))
		if err == nil {
			message <- h.Type
		}
		close(message)
	}()

	const n = 3 << abi.WindowBellsLog2
	bells := make([]bell, n)
	for i := range bells {
		bells[i].record = abi.Doorbell{Kind: abi.DoorbellSQ, Queue: uint32(i)}
		s.ring(&bells[i], 10)
		s.ring(&bells[i], 11) // of those that wait only the newest index is sent
	}
	s.mute(&bells[n-1])
	last := map[uint32]uint32{}
	var next uint32
	for deadline := time.Now().Add(testTime); len(last) < n-1; {
		ready, err := device.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if ready == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d queues rang", len(last))
			}
			time.Sleep(time.Millisecond)
		}
		for range ready {
			var b [abi.DoorbellSize]byte
			if err := device.Read(b[:]); err != nil {
				t.Fatal(err)
			}
			device.Take()
			var d abi.Doorbell
			d.Unmarshal(b[:])
			if d.Queue != next && d.Queue+1 != next {
				t.Fatalf("queue %d rang, want %d", d.Queue, next)
			}
			next = d.Queue + 1
			last[d.Queue] = d.Index
		}
		if err := device.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for q, index := range last {
		if index != 11 || q == n-1 {
			t.Errorf("queue %d rang last with index %d", q, index)
		}
	}

	if n := allocs.PerRun(50, func() { s.ring(&bells[0], 12) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	s.fail(ErrClosed, true)
	s.wg.Wait()
	s.ring(&bells[0], 13) // of a stream that has ended: nothing
	s.useWindow(nil)
	theirs.Close()
	if m, ok := <-message; ok {
		t.Errorf("a message of type %v", m)
	}
}

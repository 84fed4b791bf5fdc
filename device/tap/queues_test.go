package tap

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
)

// TestQueues: the kernel spreads flows over the queues, Read takes from all of them, and each flow
// arrives in order.
func TestQueues(t *testing.T) {
	if _, err := os.Stat(tunDevice); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	const queues, flows, each = 4, 32, 8
	netns.Run(t, func() {
		if err := NewBridge("br0", 1500); err != nil {
			t.Fatal(err)
		}
		from, err := Open(Config{Name: "up1", MTU: 1500, Bridge: "br0"})
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		to, err := open(Config{Name: "up2", MTU: 1500, Bridge: "br0", Queues: queues})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if c := to.Capabilities(); c.Queues != queues || len(to.dev.fds) != queues {
			t.Errorf("%+v", c)
		}
		_, template := super(4, 4)
		copy(template, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
		at := len(template) - 4
		var out [][]byte
		for n := range each {
			for flow := range flows {
				f := append(append([]byte(nil), template[:at]...), byte(flow), byte(n), 0, 0)
				binary.BigEndian.PutUint16(f[at-8:], uint16(0xC000+flow))
				for len(f) < 60 {
					f = append(f, 0)
				}
				out = append(out, f)
			}
		}
		if n, err := from.Write(out, false); n != len(out) || err != nil {
			t.Fatal(n, err)
		}
		used := 0
		for _, fd := range to.dev.fds {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); err == nil && n == 1 {
				used++
			}
		}
		if used < 2 {
			t.Errorf("%d flows in %d of %d queues", flows, used, queues)
		}
		var next [flows]byte
		bufs, got := [][]byte{make([]byte, BufferSize(to))}, make([]Received, 1)
		for read := 0; read < len(out); read++ {
			ready, err := 0, error(unix.EINTR) // the runtime preempts threads by signals
			for err == unix.EINTR {
				ready, err = unix.Poll([]unix.PollFd{{Fd: int32(to.FD()), Events: unix.POLLIN}}, 60_000)
			}
			if err != nil || ready == 0 {
				t.Fatalf("%d of %d frames: %v", read, len(out), err)
			}
			if n, err := to.Read(bufs, got); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			flow, n := bufs[0][at], bufs[0][at+1]
			if next[flow] != n {
				t.Fatalf("flow %d: frame %d, want %d", flow, n, next[flow])
			}
			next[flow]++
		}
		if n, err := to.Read(bufs, got); n != 0 || err != nil {
			t.Errorf("%d more, %v", n, err)
		}
		if s := to.Stats(); s.RxFrames != uint64(len(out)) || s.RxDropped != 0 {
			t.Errorf("%+v", s)
		}
	})
}

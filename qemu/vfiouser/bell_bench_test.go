package vfiouser

import (
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bellDevice has an eventfd written to when a doorbell reaches it, as the supervisor has.
type bellDevice struct {
	Device
	eventfd int
	at      time.Time
}

func (d *bellDevice) Region(uint32) (RegionInfo, int) {
	return RegionInfo{Size: 4096, Flags: RegionReadable | RegionWritable}, -1
}

func (d *bellDevice) Write(uint32, uint64, []byte) {
	d.at = time.Now()
	signal(d.eventfd)
}
func (d *bellDevice) Vectors(uint32) uint32              { return 0 }
func (d *bellDevice) SetIRQs(_, _ uint32, _ []int) error { return nil }

func signal(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func take(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

// bellWay is the threads that a doorbell goes by, without a guest.
type bellWay struct {
	b      *testing.B
	client int // QEMU's end of the socket
	reply  int // eventfd: an answer has come
	dev    bellDevice
	woken  chan time.Time // a thread that sleeps as the NIC's does was woken
	ended  chan error
}

func newBellWay(b *testing.B) *bellWay {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "server")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		b.Fatal(err)
	}
	w := &bellWay{b: b, client: fds[1], woken: make(chan time.Time, 1), ended: make(chan error, 1)}
	for _, fd := range []*int{&w.reply, &w.dev.eventfd} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			b.Fatal(err)
		}
	}
	go func() { w.ended <- Serve(c.(*net.UnixConn), &w.dev) }()
	go func() { // as QEMU's thread for the socket: it wakes the virtual CPU's
		runtime.LockOSThread()
		answer := make([]byte, maxMessage)
		for n := 1; n > 0; {
			if n, _ = unix.Read(w.client, answer); n > 0 {
				signal(w.reply)
			}
		}
	}()
	return w
}

// sleep has a thread wait for the doorbell.
func (w *bellWay) sleep() {
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		fds := [1]unix.PollFd{{Fd: int32(w.dev.eventfd), Events: unix.POLLIN}}
		_, _ = unix.Ppoll(fds[:], nil, nil)
		at := time.Now()
		take(w.dev.eventfd)
		w.woken <- at
	}()
}

// send is what the virtual CPU's thread does for an access.
func (w *bellWay) send(cmd Command, flags uint32, body []byte) {
	h := Header{Command: cmd, Flags: flags, Size: uint32(HeaderSize + len(body))}
	if _, err := unix.Write(w.client, append(h.Append(nil), body...)); err != nil {
		w.b.Fatal(err)
	}
	if flags&FlagNoReply == 0 {
		take(w.reply)
	}
}

func (w *bellWay) end() {
	_ = unix.Shutdown(w.client, unix.SHUT_RDWR)
	if err := <-w.ended; err != nil {
		w.b.Error(err)
	}
	for _, fd := range []int{w.client, w.reply, w.dev.eventfd} {
		_ = unix.Close(fd)
	}
}

// BenchmarkBell measures a store to a trapped BAR, with a reply or posted, and an eventfd in its
// place, as with ivshmem: the time until the supervisor has it, until the NIC's thread runs, and
// until the virtual CPU's thread goes on. All threads have slept for a millisecond before.
func BenchmarkBell(b *testing.B) {
	for _, how := range []string{"answered", "posted", "eventfd"} {
		b.Run(how, func(b *testing.B) {
			w := newBellWay(b)
			defer w.end()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			g := Greeting{}
			w.send(Version, 0, g.Append(nil))
			a := Access{Offset: 12, Count: 4}
			body := append(a.Append(nil), 0, 0, 0, 0)
			flags := uint32(0)
			if how == "posted" {
				flags = FlagNoReply
			}
			times := map[string][]time.Duration{}
			for b.Loop() {
				w.sleep()
				time.Sleep(time.Millisecond)
				start := time.Now()
				if how == "eventfd" {
					signal(w.dev.eventfd)
				} else {
					w.send(RegionWrite, flags, body)
				}
				times["cpu"] = append(times["cpu"], time.Since(start))
				times["nic"] = append(times["nic"], (<-w.woken).Sub(start))
				if how != "eventfd" {
					times["supervisor"] = append(times["supervisor"], w.dev.at.Sub(start))
				}
			}
			for name, t := range times {
				slices.Sort(t)
				b.ReportMetric(float64(t[0].Nanoseconds())/1000, name+"_min_us")
				b.ReportMetric(float64(t[len(t)/10].Nanoseconds())/1000, name+"_p10_us")
				b.ReportMetric(float64(t[len(t)/2].Nanoseconds())/1000, name+"_p50_us")
			}
		})
	}
}

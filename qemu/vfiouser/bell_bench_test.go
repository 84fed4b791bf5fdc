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

// bellDevice notes when a doorbell reaches it.
type bellDevice struct {
	Device
	rung chan time.Time
}

func (d bellDevice) Region(uint32) (RegionInfo, int) {
	return RegionInfo{Size: 4096, Flags: RegionReadable | RegionWritable}, -1
}
func (d bellDevice) Write(uint32, uint64, []byte)       { d.rung <- time.Now() }
func (d bellDevice) Vectors(uint32) uint32              { return 0 }
func (d bellDevice) SetIRQs(_, _ uint32, _ []int) error { return nil }

// BenchmarkBell is what a store to a trapped BAR costs: until the device has it, and until the client,
// a thread that waits as QEMU's does, goes on. The device is left alone before each.
func BenchmarkBell(b *testing.B) {
	for _, how := range []string{"answered", "posted"} {
		b.Run(how, func(b *testing.B) {
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
			rung, ended := make(chan time.Time, 1), make(chan error, 1)
			go func() { ended <- Serve(c.(*net.UnixConn), bellDevice{rung: rung}) }()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			answer := make([]byte, maxMessage)
			send := func(cmd Command, flags uint32, body []byte) {
				h := Header{Command: cmd, Flags: flags, Size: uint32(HeaderSize + len(body))}
				if _, err := unix.Write(fds[1], append(h.Append(nil), body...)); err != nil {
					b.Fatal(err)
				}
				if flags&FlagNoReply == 0 {
					if _, err := unix.Read(fds[1], answer); err != nil {
						b.Fatal(err)
					}
				}
			}
			g := Greeting{}
			send(Version, 0, g.Append(nil))
			a := Access{Offset: 12, Count: 4}
			body := append(a.Append(nil), 0, 0, 0, 0)
			flags := uint32(0)
			if how == "posted" {
				flags = FlagNoReply
			}
			var reached, returned []time.Duration
			for b.Loop() {
				time.Sleep(200 * time.Microsecond)
				start := time.Now()
				send(RegionWrite, flags, body)
				returned = append(returned, time.Since(start))
				reached = append(reached, (<-rung).Sub(start))
			}
			_ = unix.Close(fds[1])
			if err := <-ended; err != nil {
				b.Error(err)
			}
			for name, times := range map[string][]time.Duration{"reached": reached, "returned": returned} {
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/10].Nanoseconds())/1000, name+"_p10_us")
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, name+"_p50_us")
			}
		})
	}
}

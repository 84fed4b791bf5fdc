package tunneltest_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
)

// sealRounds is more than other benchmarks need: other virtual machines on the host slow its memory
// down, which changes a packet's time by up to a third, and the cipher's as much at other moments.
const sealRounds = 9

// BenchmarkTunnelSealCPU measures the processor time, user and system, that two `vnic run` take for
// each sealed packet of 4 KiB and of 8 KiB, divided by that of AES-GCM alone to seal and open as much. Two
// clients, processes of their own whose time does not count, exchange WRITEs of 64 KiB at an
// underlay MTU of 9000. Both NICs' threads share one processor, because two processors of one
// machine (apart) would move each frame's memory between their caches, which NICs of two machines
// do not. "singly" is without superframes. Each round measures the cipher before each variant; the
// report is the median.
func BenchmarkTunnelSealCPU(b *testing.B) {
	vnictest.RequireRoot(b)
	netns.Run(b, func() {
		x := newBoxes(b, 9000)
		one, two := []int{0, 0}, []int{0, 1}
		var ways []*tunnel
		sizes := map[*tunnel]int{}
		for k, size := range []int{4096, 8192} {
			for i, o := range []vnicOptions{
				{superframes: config.SuperframesAuto, processors: one},
				{name: "@apart", superframes: config.SuperframesAuto, processors: two},
				{name: "@singly", superframes: config.SuperframesOff, processors: one},
			} {
				o.rdmaMTU = size
				w := x.vnic(1+3*k+i, o)
				ways, sizes[w] = append(ways, w), size
			}
		}
		defer func() {
			for _, w := range ways {
				w.end()
			}
		}()
		for _, w := range ways {
			x.write64K(w, 1000) // keys, windows and buffers are there
		}
		samples := map[string][]float64{}
		for b.Loop() {
			for range sealRounds {
				for _, w := range ways {
					alone := cipherTime(b, sizes[w])
					took := x.sealedPacket(w)
					metric := fmt.Sprintf("tunnel/seal%dk_cpu_over_cipher%s", sizes[w]>>10, w.name)
					samples[metric] = append(samples[metric], float64(took)/float64(alone))
				}
			}
		}
		for name, v := range samples {
			slices.Sort(v)
			b.ReportMetric(v[len(v)/2], name)
		}
		b.ReportMetric(0, "ns/op") // says nothing
	})
}

// sealWindow is how long a measurement takes. It is short enough to be beside that of the cipher.
const sealWindow = 500 * time.Millisecond

// sealedPacket returns the processor time of both NICs for one packet, measured over a part of the
// time in which a client writes: drivers that come and go cost a NIC several milliseconds, and say
// nothing about packets.
func (b *boxes) sealedPacket(w *tunnel) (took time.Duration) {
	b.t.Helper()
	taken := func() (sum time.Duration) {
		for _, p := range w.nics {
			sum += processorTime(b.t, p.Cmd.Process.Pid)
		}
		return sum
	}
	packets := func() uint64 {
		c, err := control.NewClient(w.control).Counters(b.t.Context())
		b.must(err)
		return c["falcon.data_sent"]
	}
	first := packets()
	b.beside(w, []string{"-D", "2"}, func() {
		const started = 1000 // packets: windows are open, buffers are there
		end := time.Now().Add(10 * time.Second)
		for packets() < first+started {
			if time.Now().After(end) {
				b.t.Fatal("the client does not write")
			}
			time.Sleep(5 * time.Millisecond)
		}
		sent, before := packets(), taken()
		time.Sleep(sealWindow)
		sent, took = packets()-sent, taken()-before
		if sent == 0 {
			b.t.Fatalf("the client wrote nothing in %s", sealWindow)
		}
		took /= time.Duration(sent)
	})
	if took < time.Microsecond {
		b.t.Fatalf("two NICs sealed and opened a packet in %s: these are not the processes that do it", took)
	}
	return took
}

// write64K lets a client of the first NIC write 64 KiB n times to one of the second.
func (b *boxes) write64K(w *tunnel, n int) {
	b.t.Helper()
	b.beside(w, []string{"-n", strconv.Itoa(n)}, func() {})
}

// beside does something while a client of the first NIC writes 64 KiB at a time to one of the second,
// with 64 WRITEs outstanding, for as long as its options say. It sleeps until every 32nd completes:
// waking it is the NIC's work and costs up to 19 µs of a processor on a virtual machine.
func (b *boxes) beside(w *tunnel, options []string, do func()) {
	b.t.Helper()
	start := func(name string, box int, args ...string) (*labkit.Process, *bytes.Buffer) {
		var said bytes.Buffer
		cmd := exec.Command(vnictest.Program(b.t), append([]string{"guest", "perf", "-d", w.devices[box], "write_bw", "-e"}, args...)...)
		cmd.Stdout, cmd.Stderr = &said, &said
		p, err := labkit.StartCommand(name, cmd)
		b.must(err)
		return p, &said
	}
	server, _ := start("server", 1)
	defer server.Stop(time.Second)
	client, said := start("client", 0, append(options, "-N", "-s", "65536", "-t", "64", "-Q", "32", boxAddress(w.net, 2))...)
	defer client.Stop(time.Second)
	do()
	if <-client.Done; client.Err != nil {
		b.t.Fatalf("%v: %s", client.Err, said)
	}
	<-server.Done
	b.must(server.Err)
}

// cipherTime returns the processor time of AES-GCM for sealing and opening n bytes, on the processor of
// the NICs: at one moment two processors may be slowed down by others differently.
func cipherTime(b *testing.B, n int) time.Duration {
	b.Helper()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, first unix.CPUSet
	first.Set(0)
	if err := errors.Join(unix.SchedGetaffinity(0, &before), unix.SchedSetaffinity(0, &first)); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	const rounds = 50_000
	nonce, aad, buf := make([]byte, 12), make([]byte, 48), make([]byte, n+16)
	start := threadTime(b)
	for range rounds {
		nonce[0]++
		aead.Seal(buf[:0], nonce, buf[:n], aad)
		if _, err := aead.Open(buf[:0], nonce, buf, aad); err != nil {
			b.Fatal(err)
		}
	}
	return (threadTime(b) - start) / rounds
}

// threadTime returns the processor time of the calling thread.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(fmt.Errorf("getrusage: %w", err))
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

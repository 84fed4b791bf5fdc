package main

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// BenchmarkPorts measures ports in guests' memory as RFC 2544 §26.1 does: the highest rate at which
// no more than lossAllowed of the frames is lost, found by search. The NIC's thread has one processor;
// one driver of ours, which polls, sends by one port and receives by another on a second processor.
func BenchmarkPorts(b *testing.B) {
	for _, bc := range []struct {
		metric string
		cpu    string  // metric of the NIC's processor time for a frame
		size   int     // bytes of a frame
		scale  float64 // of the metric to frames a second
	}{
		{"ports/local64_pps", "ports/local64_cpu_ns", 64, 1},
		{"ports/local1500_gbps", "ports/local1500_cpu_ns", 1514, 1514 * 8 / 1e9},
	} {
		b.Run(bc.metric, func(b *testing.B) {
			if runtime.NumCPU() < 2 {
				b.Skip("one processor for the NIC and one for the guests are needed")
			}
			dir, err := os.MkdirTemp("", "ports")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			path := portConfig(b, dir, 1, 2, 1, "")
			serveOn(b, fabric.New(4500), path)
			o := vhosttest.NetOptions{Merge: true, Size: 1024}
			from, to := newStation(b, dir, 1, 1, o), newStation(b, dir, 1, 2, o)
			from.ask(to.ip)
			to.ask(from.ip)
			frame := from.udp(to.ip, make([]byte, bc.size-42))
			for b.Loop() {
				b.ReportMetric(bc.scale*from.ndr(to, frame, 20e6), bc.metric)
				b.ReportMetric(from.cost(to, frame), bc.cpu)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkPortsTunnel is BenchmarkPorts for two NICs, processes of their own, whose uplinks are TAPs on
// one bridge: driver, ring, seal, kernel, seal, ring, driver, all on the processors that there are.
func BenchmarkPortsTunnel(b *testing.B) {
	inLab(b, false, func(l *lab) {
		o := vhosttest.NetOptions{Merge: true, Size: 1024}
		s := l.onGuestPorts([2]vhosttest.NetOptions{o, o})
		s[0].ask(s[1].ip)
		s[1].ask(s[0].ip)
		for b.Loop() {
			b.ReportMetric(s[0].ndr(s[1], s[0].udp(s[1].ip, make([]byte, 64-42)), 5e6), "ports/ndr64_pps")
			b.ReportMetric(s[0].ndr(s[1], s[0].udp(s[1].ip, make([]byte, 1400-42)), 5e6), "ports/ndr1400_pps")
		}
		b.ReportMetric(0, "ns/op")
	})
}

// Of the search.
const (
	lossAllowed = 0.001
	trialTime   = 200 * time.Millisecond
	trials      = 12
	resolution  = 0.02
)

// ndr is the highest rate found, frames a second, at which a trial loses almost nothing.
func (s *station) ndr(to *station, frame []byte, most float64) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	low, high := 0.0, most
	for range trials {
		rate := (low + high) / 2
		sent, got, took := s.trial(to, frame, rate)
		offered := float64(sent) / took.Seconds()
		if float64(sent-got) <= lossAllowed*float64(sent) {
			low = max(low, min(rate, offered)) // the driver itself may not reach the rate
			if offered < 0.98*rate {
				high = rate
			}
		} else {
			high = rate
		}
		if high-low < resolution*high {
			break
		}
	}
	return low
}

// cost is the processor time that the NIC, in this process, takes for a frame when it is flooded, ns:
// that of all threads but the driver's.
func (s *station) cost(to *station, frame []byte) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	others := func() time.Duration {
		var all, own unix.Rusage
		if err := errors.Join(unix.Getrusage(unix.RUSAGE_SELF, &all), unix.Getrusage(unix.RUSAGE_THREAD, &own)); err != nil {
			s.t.Fatal(err)
		}
		return time.Duration(all.Utime.Nano() + all.Stime.Nano() - own.Utime.Nano() - own.Stime.Nano())
	}
	before := others()
	_, got, _ := s.trial(to, frame, 1e9)
	return float64(others()-before) / float64(max(got, 1))
}

// trial sends at a rate for a while, and counts.
func (s *station) trial(to *station, frame []byte, rate float64) (sent, got int, took time.Duration) {
	const burst = 64
	began := time.Now()
	for {
		took = time.Since(began)
		if took >= trialTime {
			break
		}
		for due := min(int(rate*took.Seconds())-sent, burst); due > 0; due-- {
			if !s.guest.Post(0, vhosttest.Header{}, frame) {
				break
			}
			sent++
		}
		s.guest.Notify(0)
		got += to.guest.Discard(0)
	}
	for idle := time.Now(); time.Since(idle) < 20*time.Millisecond && got < sent; {
		if n := to.guest.Discard(0); n > 0 {
			got += n
			idle = time.Now()
		}
	}
	return sent, got, took
}

package tcp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestStreamsArriveWholeAndInOrder: what either end writes arrives at the other whole and in order, on
// a network that loses and reorders packets; all of it is acknowledged; then both ends close.
func TestStreamsArriveWholeAndInOrder(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s, seed %d", family(v6), seed), func(t *testing.T) {
				w := newWorld(t, seed, v6, tcp.Limits{})
				w.loss, w.swap = 0.01*float64(seed), 0.02*float64(seed)
				w.sides[1].Listen(7, 5000)
				a, b := w.connected(5000, v6)
				want := [2][]byte{bytesOf(seed, 1<<20), bytesOf(seed+9, 300_000)}
				a.left, b.left = want[0], want[1]
				a.closeAfter, b.closeAfter = true, true
				w.until("all bytes", func() bool { return a.eof && b.eof })
				if !bytes.Equal(b.got, want[0]) || !bytes.Equal(a.got, want[1]) {
					t.Errorf("%d and %d bytes arrived, which are others than were sent", len(b.got), len(a.got))
				}
				w.until("acknowledgements", func() bool {
					return a.Acknowledged() == uint64(len(want[0])) && b.Acknowledged() == uint64(len(want[1]))
				})
				if a.Local.Addr() != addresses[v6][0] || a.Local.Port() == 0 || b.Peer != a.Local || b.Local != a.Peer || b.port != 5000 || a.MSS < 1400 {
					t.Errorf("%+v, %+v", a.Conn, b.Conn)
				}
				a.Close()
				b.Close()
				w.until("the end", func() bool { return a.over && b.over })
				if a.why != "" || b.why != "" {
					t.Errorf("lost: %q, %q", a.why, b.why)
				}
			})
		}
	}
}

// TestClosingBeforeAllIsSentLosesNothing: the peer gets all that was written before Close.
func TestClosingBeforeAllIsSentLosesNothing(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	a, b := w.connected(5000, false)
	want := bytesOf(1, 200_000)
	if n := a.Write(want); n != len(want) {
		t.Fatal(n)
	}
	a.Close()
	w.until("all bytes", func() bool { return b.eof })
	b.Close()
	w.until("the end", func() bool { return a.over && b.over })
	if !bytes.Equal(b.got, want) || a.why != "" {
		t.Errorf("%d bytes; %q", len(b.got), a.why)
	}
}

// TestAnEndIsToldAfterWhatWasWritten: the peer has acknowledged all bytes before the FIN is sent.
func TestAnEndIsToldAfterWhatWasWritten(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	a, b := w.connected(5000, false)
	var acked uint32
	fins := 0
	w.sees = func(from int, packet []byte) {
		segment := header.TCP(packet[header.IPv4MinimumSize:])
		switch {
		case from == 1:
			acked = segment.AckNumber()
		case segment.Flags()&header.TCPFlagFin != 0:
			if fins++; segment.SequenceNumber() != acked || len(segment) != int(segment.DataOffset()) {
				t.Errorf("FIN at %d with %d bytes, the peer has acknowledged up to %d", segment.SequenceNumber(), len(segment)-int(segment.DataOffset()), acked)
			}
		}
	}
	a.Write([]byte("the last words"))
	a.CloseWrite()
	w.until("the end", func() bool { return b.eof })
	if string(b.got) != "the last words" || fins == 0 {
		t.Errorf("%q, %d FINs", b.got, fins)
	}
}

// TestAnEndThatTakesNothingStopsItsPeer: the peer's writes end at a bounded number of bytes, the shard
// keeps a bounded number, and all goes on when it takes them.
func TestAnEndThatTakesNothingStopsItsPeer(t *testing.T) {
	const buffer = 64 << 10
	w := newWorld(t, 1, false, tcp.Limits{Buffer: buffer})
	w.sides[1].Listen(7, 5000)
	a, b := w.connected(5000, false)
	b.deaf = true
	want := bytesOf(1, 1<<20)
	a.left = want
	quiet, before := w.time, 0
	w.until("an end of the bytes", func() bool {
		if len(a.left) != before {
			before, quiet = len(a.left), w.time
		}
		return a.Room() == 0 && w.time > quiet+vtime.Time(10*time.Second)
	})
	if gone := len(want) - len(a.left); gone > 4*buffer || len(b.In()) > buffer {
		t.Errorf("%d bytes were taken of the sender, %d are kept", gone, len(b.In()))
	}
	b.deaf = false
	w.until("all bytes", func() bool { return len(b.got) == len(want) })
	if !bytes.Equal(b.got, want) {
		t.Error("other bytes")
	}
}

// TestCallsThatCannotSucceedSayWhy: a call to a port where nobody listens, without an address, to
// another family, or beyond the limit of connections ends with the reason.
func TestCallsThatCannotSucceedSayWhy(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{Conns: 1})
	to := netip.AddrPortFrom(addresses[false][1], 5000)
	w.sides[1].Listen(7, 5000)
	a, _ := w.connected(5000, false)
	for want, e := range map[string]*end{
		"the function has no address":                       w.callFrom(0, 8, to),
		"fd00::2 is of another family than the function's":  w.call(netip.AddrPortFrom(addresses[true][1], 5000)),
		"the function has 1 connections, as many as it may": w.call(to),
	} {
		w.until("the reason", func() bool { return e.over })
		if !strings.Contains(e.why, want) {
			t.Errorf("%q, want %q", e.why, want)
		}
	}
	a.Reset()
	w.until("room", func() bool { return a.over })
	e := w.call(netip.AddrPortFrom(addresses[false][1], 5001))
	w.until("the refusal", func() bool { return e.over })
	if !strings.Contains(e.why, "refused") {
		t.Errorf("nobody listens: %q", e.why)
	}
}

// TestACallThatNobodyAnswersEndsAfterHalfAMinute, and one that is answered late lives on.
func TestACallThatNobodyAnswersEndsAfterHalfAMinute(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	to := netip.AddrPortFrom(addresses[false][1], 5000)
	w.sides[1].Listen(7, 5000)
	w.loss = 1
	passes := func(until time.Duration, ends ...*end) {
		t.Helper()
		for w.time < until.Nanoseconds() {
			for _, e := range ends {
				if e.over {
					t.Fatalf("it ended after %v: %q", time.Duration(w.time), e.why)
				}
			}
			w.time += turnTime * 1000
			w.turn()
		}
	}
	lost := w.call(to)
	passes(20*time.Second, lost)
	late := w.call(to)
	passes(29*time.Second, lost, late)
	passes(31*time.Second, late)
	if !lost.over || !strings.Contains(lost.why, "timed out") {
		t.Errorf("after half a minute: over %t, %q", lost.over, lost.why)
	}
	w.loss = 0
	passes(100*time.Second, late)
	if !late.connected {
		t.Fatal("a call that is answered after a quarter of a minute is not connected")
	}
	late.left = bytesOf(1, 100_000)
	w.until("the data", func() bool { return len(w.sides[1].conns) == 1 && len(w.sides[1].conns[0].got) == 100_000 })
}

// TestListenersThatCannotListenSayWhy: a listener without a port, at a port in use or beyond
// the limit ends with the reason.
func TestListenersThatCannotListenSayWhy(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{Listeners: 2})
	s := w.sides[0]
	for _, port := range []uint16{0, 5000, 5001, 5000, 5002} {
		s.Listen(7, port)
	}
	w.until("reasons", func() bool { return len(s.refuse) == 3 })
	for port, want := range map[uint16]string{0: "not a port", 5000: "already", 5002: "2 ports, as many as it may"} {
		if !strings.Contains(s.refuse[port], want) {
			t.Errorf("%d: %q", port, s.refuse[port])
		}
	}
	s.Unlisten(7, 5000)
	s.Listen(7, 5002)
	e := w.callFrom(1, 7, netip.AddrPortFrom(addresses[false][0], 5002))
	w.until("a connection", func() bool { return e.connected })
}

// TestAResetIsSeenAtTheOtherEnd: a connection that one end resets is lost at the other.
func TestAResetIsSeenAtTheOtherEnd(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	a, b := w.connected(5000, false)
	a.Reset()
	w.until("the end", func() bool { return a.over && b.over })
	if a.why != "" || !strings.Contains(b.why, "reset") {
		t.Errorf("%q, %q", a.why, b.why)
	}
}

// TestWhatArrivedOutlivesAReset: a shard that resets a connection still has what it has not taken, though memory of
// the connection is used for others.
func TestWhatArrivedOutlivesAReset(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	a, b := w.connected(5000, false)
	other, _ := w.connected(5000, false)
	want := bytesOf(1, 1400)
	w.data = func(e *end) {
		if e == b {
			e.Reset()
			other.Write(make([]byte, len(want)))
			w.sides[0].Flush()
		}
	}
	a.left = want
	w.until("the end", func() bool { return b.over })
	if !bytes.Equal(b.In(), want) {
		t.Error("other bytes")
	}
}

// TestARemovedFunctionsPeersAreReset: the peers of a function that is taken out lose their
// connections, and the function may come again.
func TestARemovedFunctionsPeersAreReset(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	for range 2 {
		w.sides[1].Listen(7, 5000)
		a, _ := w.connected(5000, false)
		w.sides[1].Remove(7)
		w.sides[1].conns = nil
		w.until("the end", func() bool { return a.over })
		if !strings.Contains(a.why, "reset") {
			t.Error(a.why)
		}
		w.sides[1].Add(7, addresses[false][1], mtu)
	}
}

// TestConnectionsBeyondTheLimitWait: a function answers no more connections than it may have; the
// others come when there is room.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	const most = 3
	w := newWorld(t, 1, false, tcp.Limits{Conns: most})
	w.sides[0].Add(8, netip.MustParseAddr("10.0.0.8"), mtu)
	w.cross = func(from int, function uint32) uint32 {
		if from == 1 { // by the destination
			return map[byte]uint32{1: 7, 8: 8}[w.buf[19]]
		}
		return 7
	}
	w.sides[1].Listen(7, 5000)
	for i := range 2 * most {
		w.callFrom(0, 7+uint32(i%2), netip.AddrPortFrom(addresses[false][1], 5000))
	}
	answered := func() int { return len(w.sides[1].conns) }
	w.until("the first", func() bool { return answered() == most })
	for range 500 {
		w.turn()
	}
	if n := answered(); n != most {
		t.Errorf("%d connections were answered, want %d", n, most)
	}
	for _, e := range w.sides[1].conns[:most] {
		e.Reset()
	}
	w.until("the others", func() bool { return answered() == 2*most })
	w.until("the limit", func() bool { return w.sides[1].Stats().Conns == most })
}

// TestCallsThatComeTogetherAreAnsweredTogether: a listener answers more calls that come in the same Step than its
// backlog holds, without one being repeated.
func TestCallsThatComeTogetherAreAnsweredTogether(t *testing.T) {
	const calls = 200
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	for range calls {
		w.call(netip.AddrPortFrom(addresses[false][1], 5000)).left = bytesOf(1, 20)
	}
	w.until("all bytes", func() bool {
		for _, e := range w.sides[1].conns {
			if len(e.got) < 20 {
				return false
			}
		}
		return len(w.sides[1].conns) == calls
	})
	if w.time > 10*turnTime {
		t.Errorf("that took %v", time.Duration(w.time))
	}
}

// TestPortsOfAConnectionThatIsOverServeTheNext: whoever calls from the ports of a connection that ends is
// connected when no segments of that are on their way, and does not wait until TCP has forgotten it. Each has its own
// bytes, also if packets are lost and overtaken.
func TestPortsOfAConnectionThatIsOverServeTheNext(t *testing.T) {
	for seed := range uint64(20) {
		v6, first, lossy := seed%2 == 1, int(seed/2%2), seed >= 4 // the end that closes first lingers
		w := newWorld(t, seed, v6, tcp.Limits{})
		if lossy {
			w.loss, w.swap = 0.02, 0.02
		}
		w.sides[1].Listen(7, 5000)
		for i := range uint64(10) {
			n, text := len(w.sides[1].conns), bytesOf(i, 5000)
			a := &end{left: text}
			a.Conn = w.sides[0].Connect(7, 40000, netip.AddrPortFrom(addresses[v6][1], 5000))
			a.Owner = a
			w.sides[0].conns = append(w.sides[0].conns, a)
			w.until("the bytes", func() bool {
				return a.over || len(w.sides[1].conns) > n && len(w.sides[1].conns[n].got) == len(text)
			})
			if a.over {
				t.Fatalf("seed %d: connection %d: %s", seed, i, a.why)
			}
			b := w.sides[1].conns[n]
			if !bytes.Equal(b.got, text) {
				t.Fatalf("seed %d: connection %d has the bytes of another", seed, i)
			}
			ends := []*end{a, b}
			ends[first].Close()
			if i%2 == 0 {
				w.until("its end", func() bool { return ends[1-first].eof })
			}
			ends[1-first].Close()
			if i%3 == 0 {
				w.until("the end", func() bool { return a.over && b.over })
			}
		}
		if !lossy && w.time > 1e9 {
			t.Errorf("seed %d: that took %v", seed, time.Duration(w.time))
		}
		w.sides[0].Remove(7)
		w.sides[1].Remove(7)
		if a, b := w.sides[0].Stats().Conns, w.sides[1].Stats().Conns; a+b > 0 {
			t.Errorf("seed %d: %d and %d connections are left", seed, a, b)
		}
	}
}

// TestConnectionsThatAreOverMakeRoom: a function that has as many connections as it may gets another one for
// one that is over, at either end.
func TestConnectionsThatAreOverMakeRoom(t *testing.T) {
	const most = 3
	for first := range 2 { // end that closes first, and lingers
		w := newWorld(t, 1, false, tcp.Limits{Conns: most})
		w.sides[1].Listen(7, 5000)
		for range 5 * most {
			a, b := w.connected(5000, false)
			ends := []*end{a, b}
			ends[first].Close()
			w.until("its end", func() bool { return ends[1-first].eof })
			ends[1-first].Close()
			w.until("the end", func() bool { return a.over && b.over })
			if n := w.sides[first].Stats().Conns; n > most {
				t.Fatalf("%d connections, at most %d may be", n, most)
			}
		}
		if w.time > 3e9 {
			t.Errorf("%d closes first: that took %v", first, time.Duration(w.time))
		}
	}
}

// TestFunctionsOfTwoTenantsMayHaveTheSameAddress: two functions of a shard with one address have
// connections with the same ports, each with its own bytes.
func TestFunctionsOfTwoTenantsMayHaveTheSameAddress(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	for i, s := range w.sides {
		s.Add(9, addresses[false][i], mtu)
	}
	to := netip.AddrPortFrom(addresses[false][1], 5000)
	for _, f := range []uint32{7, 9} {
		w.sides[1].Listen(f, 5000)
	}
	a, b := w.callFrom(0, 7, to), w.callFrom(0, 9, to)
	a.left, b.left = bytesOf(7, 100_000), bytesOf(9, 100_000)
	w.until("all bytes", func() bool {
		c := w.sides[1].conns
		return len(c) == 2 && len(c[0].got) == 100_000 && len(c[1].got) == 100_000
	})
	for _, e := range w.sides[1].conns {
		if !bytes.Equal(e.got, bytesOf(uint64(e.Function), 100_000)) {
			t.Errorf("function %d has the bytes of another", e.Function)
		}
	}
}

// TestHalfOpenConnectionsLeaveRoom: SYNs of peers that never answer take no connection of the
// function, and others still reach it.
func TestHalfOpenConnectionsLeaveRoom(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{Conns: 4, Backlog: 8})
	w.sides[1].Listen(7, 5000)
	var syn []byte
	w.sees = func(from int, packet []byte) {
		if from == 0 && packet[33] == 2 {
			syn = bytes.Clone(packet)
		}
	}
	w.connected(5000, false)
	w.sees = nil
	for i := range 20_000 {
		forged := bytes.Clone(syn)
		copy(forged[12:], []byte{10, 1, byte(i >> 8), byte(i)})
		finish(forged)
		w.sides[1].Take(7, forged)
		if i%64 == 0 {
			w.sides[1].Flush()
			w.turn()
		}
	}
	w.connected(5000, false)
	if n := len(w.sides[1].conns); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// finish writes the checksums of an IPv4 packet with a TCP segment.
func finish(p []byte) {
	sum := func(b []byte, s uint32) uint16 {
		for i := 0; i+1 < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		if len(b)%2 == 1 {
			s += uint32(b[len(b)-1]) << 8
		}
		for s>>16 != 0 {
			s = s>>16 + s&0xffff
		}
		return ^uint16(s)
	}
	clear(p[10:12])
	binary.BigEndian.PutUint16(p[10:], sum(p[:20], 0))
	clear(p[36:38])
	pseudo := uint32(6 + len(p) - 20)
	for i := 12; i < 20; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[36:], sum(p[20:], pseudo))
}

// TestEventsWaitForTheShard: a shard that takes no events loses none of them, and no bytes, however
// many there are.
func TestEventsWaitForTheShard(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	const conns, size = 30, 200_000
	var calls []*end
	for i := range conns {
		e := w.call(netip.AddrPortFrom(addresses[false][1], 5000))
		e.left, e.closeAfter = bytesOf(uint64(i), size), true
		calls = append(calls, e)
	}
	// The receiver's shard carries packets only, for a while.
	for range 200 {
		s := w.sides[0]
		w.time += turnTime
		s.Step(w.time)
		w.sides[1].Step(w.time)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			w.happened(s, ev)
		}
		for _, e := range s.conns {
			e.work()
		}
		for i, s := range w.sides {
			s.Flush()
			w.carryAll(i)
		}
	}
	w.until("all bytes", func() bool {
		n := 0
		for _, e := range w.sides[1].conns {
			if e.eof {
				n++
			}
		}
		return n == conns
	})
	for _, e := range w.sides[1].conns {
		at := -1
		for i, call := range calls {
			if call.Local == e.Peer {
				at = i
			}
		}
		if at < 0 || !bytes.Equal(e.got, bytesOf(uint64(at), size)) {
			t.Errorf("call %d: %d bytes, which are others than were sent", at, len(e.got))
		}
	}
}

// TestPacketsThatAreWrongAreIgnored: a packet that is no whole TCP segment for the function, or has a
// wrong checksum, changes nothing.
func TestPacketsThatAreWrongAreIgnored(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	var packets [][]byte
	w.sees = func(from int, packet []byte) {
		if from == 0 {
			packets = append(packets, bytes.Clone(packet))
		}
	}
	a, b := w.connected(5000, false)
	a.left = bytesOf(1, 20_000)
	w.until("bytes", func() bool { return len(b.got) == 20_000 })
	w.sees = nil
	for _, p := range packets {
		for n := range len(p) {
			w.sides[1].Take(7, p[:n])
		}
		for range 20 {
			bad := bytes.Clone(p)
			bad[w.rng.IntN(len(bad))] ^= 1 << w.rng.IntN(8)
			w.sides[1].Take(7, bad)
			w.sides[1].Take(8, bad)
		}
		w.sides[1].Flush()
		w.turn()
	}
	a.left = bytesOf(1, 20_000)
	w.until("more bytes", func() bool { return len(b.got) >= 40_000 })
	if !bytes.Equal(b.got, append(bytesOf(1, 20_000), bytesOf(1, 20_000)...)) || b.over {
		t.Error("other bytes")
	}
	if n := w.sides[1].Stats().Wrong; n == 0 {
		t.Error("none was counted")
	}
}

// TestTheShardsSideAllocatesNothing: handing over and taking packets and bytes needs no memory.
func TestTheShardsSideAllocatesNothing(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	for _, s := range w.sides {
		s.Listen(99, 80) // there is no such function
	}
	w.until("the pumps have made their functions, which allocates", func() bool {
		return w.sides[0].refuse[80] != "" && w.sides[1].refuse[80] != ""
	})
	s := w.sides[0]
	packet := make([]byte, 1400)
	if n := allocs.PerRun(100, func() {
		s.Take(99, packet)
		s.Transmit(w.buf[:])
		s.Next()
		s.Flush()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSegmentsFitWhatThePeerTakes: both ends know from the other's SYN how long segments may be, and the longest
// that they are told of travels as one packet.
func TestSegmentsFitWhatThePeerTakes(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(family(v6), func(t *testing.T) {
			w := newWorld(t, 1, v6, tcp.Limits{})
			const short = 1300
			w.sides[1].Add(7, addresses[v6][1], short)
			w.sides[1].Listen(7, 80)
			a, b := w.connected(80, v6)
			headers := 20 + 60 // IP, TCP with options
			if v6 {
				headers += 20
			}
			if a.MSS != short-headers || b.MSS != short-headers {
				t.Fatalf("%d and %d bytes in a segment, want %d", a.MSS, b.MSS, short-headers)
			}
			packets := 0
			w.sees = func(from int, packet []byte) {
				if len(packet) > 500 {
					packets++
				}
			}
			for range 5 {
				a.left = bytesOf(1, a.MSS)
				n := len(b.got) + a.MSS
				w.until("a segment", func() bool { return len(b.got) == n })
			}
			if packets != 5 {
				t.Errorf("%d packets", packets)
			}
		})
	}
}

// TestSegmentsAreHandledWhereTheyArrive: connections are made, carry bytes and end in turns of the shards alone. No
// goroutine gets the processor meanwhile, as it would have to if one of the functions of gVisor that inline_unsafe.go
// names did something else than now.
func TestSegmentsAreHandledWhereTheyArrive(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turn := func() {
		w.time += turnTime
		w.turnSides()
	}
	for range 20 { // an accident may be that the scheduler interrupts this one
		a := w.call(netip.AddrPortFrom(addresses[false][1], 5000))
		for range 3 { // SYN, SYN-ACK; ACK
			turn()
		}
		if n := len(w.sides[1].conns); !a.connected || !w.sides[1].conns[n-1].connected {
			t.Fatal("not connected")
		}
		b := w.sides[1].conns[len(w.sides[1].conns)-1]
		a.left = bytesOf(1, 5000)
		turn()
		if !bytes.Equal(b.got, bytesOf(1, 5000)) {
			t.Fatalf("%d bytes have arrived", len(b.got))
		}
		if turn(); a.Acknowledged() != 5000 {
			t.Fatalf("%d bytes are acknowledged", a.Acknowledged())
		}
		a.Close()
		turn()
		b.Close()
		for range 3 {
			turn()
		}
		if !a.over || !b.over || a.why != "" || b.why != "" {
			t.Fatalf("over: %v %q, %v %q", a.over, a.why, b.over, b.why)
		}
		w.time += vtime.Time(time.Minute) // TIME_WAIT
		if turn(); w.sides[0].Stats().Conns != 0 {
			t.Fatal("a connection stays")
		}
	}
}

// TestWhatArrivesTogetherIsAcknowledgedOnce: all that arrives for a connection between two steps has one
// acknowledgement, also if it is more than a packet can hold.
func TestWhatArrivesTogetherIsAcknowledgedOnce(t *testing.T) {
	const length = 200_000
	for _, v6 := range []bool{false, true} {
		w := newWorld(t, 1, v6, tcp.Limits{})
		w.sides[1].Listen(7, 5000)
		a, b := w.connected(5000, v6)
		for range 10 { // the window opens
			a.left, b.got = bytesOf(1, length), nil
			w.until("bytes", func() bool { return len(b.got) == length })
		}
		segments, most, answers := 0, 0, map[vtime.Time]int{}
		w.sees = func(from int, packet []byte) {
			if from == 0 {
				segments++
				return
			}
			answers[w.time]++
			most = max(most, answers[w.time])
		}
		a.left, b.got = bytesOf(2, length), nil
		w.until("bytes", func() bool { return len(b.got) == length })
		w.until("the acknowledgement", func() bool { return a.Room() == 256<<10 })
		if !bytes.Equal(b.got, bytesOf(2, length)) || segments < length/mtu || most > 1 {
			t.Errorf("IPv6 %v: %d segments, up to %d answers in a turn", v6, segments, most)
		}
	}
}

// TestASegmentThatIsLostIsSentAgainSoon: also if it is one of those that a packet stood for, and nothing was sent behind
// them, it takes no more than a tenth of a second.
func TestASegmentThatIsLostIsSentAgainSoon(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 80)
	a, b := w.connected(80, false)
	const all = 32 << 10
	longest := vtime.Time(0)
	for round := range 30 {
		n := 0
		w.sees = func(from int, packet []byte) {
			w.loss = 0
			if n++; from == 0 && n == round%22+1 {
				w.loss = 1
			}
		}
		began, had := w.time, a.Acknowledged()
		a.left = bytesOf(uint64(round), all)
		w.until("all bytes and their acknowledgement", func() bool { return a.Acknowledged() == had+all && len(b.got) == (round+1)*all })
		longest = max(longest, w.time-began)
	}
	if !bytes.Equal(b.got[len(b.got)-all:], bytesOf(29, all)) {
		t.Error("other bytes arrived than were sent")
	}
	if longest > vtime.Time(100*time.Millisecond) {
		t.Errorf("it took %d ms", longest/1e6)
	}
}

// TestWhatArrivedIsHandledBeforeTimers: a shard that waited long for its processor sends nothing again that was
// acknowledged meanwhile.
func TestWhatArrivedIsHandledBeforeTimers(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 80)
	a, b := w.connected(80, false)
	const all, wait = 8 << 10, vtime.Time(time.Second)
	for round := range 20 {
		sent := 0
		w.sees = func(from int, packet []byte) {
			if from == 0 {
				sent += len(packet) - header.IPv4MinimumSize - int(header.TCP(packet[header.IPv4MinimumSize:]).DataOffset())
			}
		}
		had := a.Acknowledged()
		a.left = bytesOf(uint64(round), all)
		w.turn()
		w.time += wait // the acknowledgement is there
		w.until("the acknowledgement", func() bool { return a.Acknowledged() == had+all })
		if sent != all || len(b.got) != (round+1)*all {
			t.Fatalf("round %d: %d bytes of %d were sent, %d have arrived", round, sent, all, len(b.got))
		}
	}
}

// TestPacketsThatWaitLeaveRoomForOthers: the packets of a function that the shard does not take keep none of
// another's from it, and only so many wait.
func TestPacketsThatWaitLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t, 1, false, tcp.Limits{Conns: 64})
	s := w.sides[0]
	s.Add(9, netip.MustParseAddr("10.0.0.9"), mtu)
	w.sides[1].Listen(7, 5000)
	var conns []*end
	for range 30 {
		a, _ := w.connected(5000, false)
		for range 5 {
			a.left = bytesOf(1, 100_000)
			w.until("the bytes' way", func() bool { return a.Room() == 256<<10 })
		}
		conns = append(conns, a)
	}
	for _, a := range conns {
		a.Write(bytesOf(1, 200_000))
	}
	s.Flush()
	if s.Stats().DepartingFull == 0 {
		t.Error("all of it waits")
	}
	w.callFrom(0, 9, netip.AddrPortFrom(addresses[false][1], 5000))
	total, others := 0, 0
	for n, d := s.Transmit(w.buf[:]); n > 0; n, d = s.Transmit(w.buf[:]) {
		if total += n; d.Function == 9 {
			others++
		}
	}
	if others != 1 || total > 1<<20 {
		t.Errorf("%d packets of the other function; %d bytes have waited", others, total)
	}
}

// FuzzPackets gives a function that listens, and has a connection, packets of all kinds, with right
// lengths and checksums where there is room for them.
func FuzzPackets(f *testing.F) {
	w := newWorld(f, 1, false, tcp.Limits{})
	w.sides[1].Listen(7, 5000)
	w.sees = func(_ int, packet []byte) { f.Add(bytes.Clone(packet), true) }
	a, b := w.connected(5000, false)
	a.left, b.left = bytesOf(1, 3000), bytesOf(2, 3000)
	w.until("bytes", func() bool { return len(a.got) == 3000 && len(b.got) == 3000 })
	local, peer := a.Local.Port(), a.Peer.Port()
	f.Fuzz(func(t *testing.T, packet []byte, right bool) {
		if len(packet) > mtu {
			packet = packet[:mtu]
		}
		if right && len(packet) >= 40 {
			packet = bytes.Clone(packet)
			packet[0], packet[6], packet[7], packet[9] = 0x45, packet[6]&0x40, 0, 6
			binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
			copy(packet[16:], addresses[false][1].AsSlice())
			if packet[8]%2 == 0 { // of the connection
				copy(packet[12:], addresses[false][0].AsSlice())
				binary.BigEndian.PutUint16(packet[20:], local)
			}
			binary.BigEndian.PutUint16(packet[22:], peer)
			finish(packet)
		}
		w.sides[1].Take(7, packet)
		w.turn()
	})
}

// BenchmarkStream measures bytes over one connection between two stacks on this machine.
func BenchmarkStream(b *testing.B) {
	w := newWorld(b, 1, false, tcp.Limits{})
	w.failed = time.Now().Add(time.Hour)
	w.sides[1].Listen(7, 5000)
	from, to := w.connected(5000, false)
	part := bytesOf(1, 1<<20)
	b.SetBytes(int64(len(part)))
	b.ResetTimer()
	for range b.N {
		from.left, to.got = part, to.got[:0]
		w.until("bytes", func() bool { return len(to.got) == len(part) })
	}
	b.ReportMetric(float64(b.N*len(part))*8/b.Elapsed().Seconds()/1e9, "tcp/stream_gbps")
}

// TestNothingWaitsForACallThatEnded: when a call ends before it is answered, no timer of it is left,
// which would hold the memory of the connection.
func TestNothingWaitsForACallThatEnded(t *testing.T) {
	for name, end := range map[string]func(*end){"reset": func(e *end) { e.Reset() }, "closed": func(e *end) { e.Close() }} {
		w := newWorld(t, 1, false, tcp.Limits{})
		w.turn()
		s := w.sides[0]
		before := s.Deadline()
		e := w.call(netip.AddrPortFrom(addresses[false][1], 5000))
		s.Next() // begins the call
		if s.Deadline() == before {
			t.Fatal("nothing waits for an answer")
		}
		end(e)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			w.happened(s, ev)
		}
		if after := s.Deadline(); after != before || !e.over || s.Stats().Conns != 0 {
			t.Errorf("%s: over %v, the next timer is at %d, and was at %d before; %d connections", name, e.over, after, before, s.Stats().Conns)
		}
	}
}

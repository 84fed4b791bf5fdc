package tcp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

func TestMain(m *testing.M) { leak.Main(m) }

// world is two stacks with a network between them that a seed makes bad.
type world struct {
	t      testing.TB
	sides  [2]*side
	rng    *rand.Rand
	loss   float64
	swap   float64 // chance that a packet is overtaken
	buf    [64 << 10]byte
	cross  func(from int, function uint32) uint32 // the function at the other side; nil: the same number
	sees   func(from int, packet []byte)
	data   func(e *end) // is called when there is data; nil: some of it is taken
	time   vtime.Time   // virtual: each turn takes some
	failed time.Time
}

// side is a shard.
type side struct {
	*tcp.Stack
	conns  []*end            // by calls and answers, in order
	held   [][]byte          // packets that others overtake
	refuse map[uint16]string // why a port cannot be listened at
	faults []string
}

// end is a connection as its shard sees it.
type end struct {
	*tcp.Conn
	port                  uint16 // that was called; 0: this end called
	connected, eof, over  bool
	why                   string
	got                   []byte
	deaf                  bool   // takes nothing
	left                  []byte // to be written
	closeAfter, writeOver bool
}

const (
	mtu      = 1500
	turnTime = vtime.Time(100 * time.Microsecond)
)

// patience is how long a test waits for what must come.
var patience = 5 * time.Minute

var addresses = map[bool][2]netip.Addr{
	false: {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")},
	true:  {netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")},
}

func newWorld(t testing.TB, seed uint64, v6 bool, l tcp.Limits) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), failed: time.Now().Add(patience)}
	for i := range w.sides {
		w.sides[i] = &side{refuse: map[uint16]string{}, Stack: tcp.New(tcp.Config{Limits: l, Wake: func() {}})}
		t.Cleanup(w.sides[i].Close)
		w.sides[i].Add(7, addresses[v6][i], mtu)
	}
	return w
}

// call connects side 0 to a port of side 1.
func (w *world) call(to netip.AddrPort) *end { return w.callFrom(0, 7, to) }

func (w *world) callFrom(i int, function uint32, to netip.AddrPort) *end {
	e := &end{}
	e.Conn = w.sides[i].Connect(function, 0, to)
	e.Owner = e
	w.sides[i].conns = append(w.sides[i].conns, e)
	return e
}

// turn is one turn of both shards, and of what gVisor has beside them.
func (w *world) turn() {
	w.time += turnTime
	runtime.Gosched()
	w.turnSides()
}

func (w *world) turnSides() {
	for i, s := range w.sides {
		s.Step(w.time)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			w.happened(s, ev)
		}
		for _, e := range s.conns {
			e.work()
		}
		s.Flush()
		w.carryAll(i)
		for _, late := range s.held {
			w.sides[1-i].Take(7, late)
		}
		s.held = nil
	}
}

// carryAll carries what a side sends, as its gateway would.
func (w *world) carryAll(from int) {
	s := w.sides[from]
	for n, d := s.Transmit(w.buf[:]); n > 0; n, d = s.Transmit(w.buf[:]) {
		for _, packet := range cut(w.buf[:n], d) {
			w.carry(from, d.Function, packet)
		}
	}
}

// cut returns the packets that a packet stands for, whole.
func cut(b []byte, d tcp.Departure) (packets [][]byte) {
	v4 := header.IPVersion(b) == header.IPv4Version
	at := header.IPv6MinimumSize
	if v4 {
		at = int(header.IPv4(b).HeaderLength())
	}
	if !d.Unsummed {
		return [][]byte{b}
	}
	headers := at + int(header.TCP(b[at:]).DataOffset())
	size := max(d.Segment, 1)
	if d.Segment == 0 {
		size = len(b)
	}
	for from := headers; from < len(b) || from == headers; from += size {
		end := min(from+size, len(b))
		p := append(bytes.Clone(b[:headers]), b[from:end]...)
		t := header.TCP(p[at:])
		t.SetSequenceNumber(t.SequenceNumber() + uint32(from-headers))
		if end < len(b) {
			t.SetFlags(uint8(t.Flags() &^ (header.TCPFlagFin | header.TCPFlagPsh)))
		}
		var net header.Network = header.IPv6(p)
		if v4 {
			ip := header.IPv4(p)
			ip.SetTotalLength(uint16(len(p)))
			ip.SetChecksum(0)
			ip.SetChecksum(^ip.CalculateChecksum())
			net = ip
		} else {
			header.IPv6(p).SetPayloadLength(uint16(len(t)))
		}
		t.SetChecksum(0)
		t.SetChecksum(^checksum.Checksum(t, header.PseudoHeaderChecksum(header.TCPProtocolNumber, net.SourceAddress(), net.DestinationAddress(), uint16(len(t)))))
		packets = append(packets, p)
	}
	return packets
}

func (w *world) carry(from int, function uint32, packet []byte) {
	if w.sees != nil {
		w.sees(from, packet)
	}
	to := function
	if w.cross != nil {
		to = w.cross(from, function)
	}
	switch {
	case w.rng.Float64() < w.loss:
	case w.rng.Float64() < w.swap && to == 7:
		w.sides[from].held = append(w.sides[from].held, append([]byte(nil), packet...))
	default:
		w.sides[1-from].Take(to, packet)
	}
}

func (w *world) happened(s *side, ev tcp.Event) {
	if ev.Kind == tcp.Fault {
		s.faults = append(s.faults, ev.Why)
		return
	}
	if ev.Kind == tcp.Unlistened {
		s.refuse[ev.Port] = ev.Why
		return
	}
	if ev.Kind == tcp.Incoming {
		e := &end{Conn: ev.Conn, port: ev.Port, connected: true}
		e.Owner = e
		s.conns = append(s.conns, e)
		return
	}
	e := ev.Conn.Owner.(*end)
	switch ev.Kind {
	case tcp.Connected:
		e.connected = true
	case tcp.Data:
		if w.data != nil {
			w.data(e)
		} else if !e.deaf { // work takes the rest
			e.take(w.rng.IntN(len(e.In()) + 1))
		}
	case tcp.PeerClosed:
		e.eof = true
	case tcp.Lost:
		e.over, e.why = true, ev.Why
	case tcp.Closed:
		e.over = true
	}
}

// work reads and writes what there is.
func (e *end) work() {
	if e.over {
		return
	}
	if n := len(e.In()); n > 0 && !e.deaf {
		e.take(n)
	}
	if n := e.Write(e.left); n > 0 {
		e.left = e.left[n:]
	}
	if e.closeAfter && len(e.left) == 0 && !e.writeOver {
		e.writeOver = true
		e.CloseWrite()
	}
}

// take takes n bytes of what has arrived.
func (e *end) take(n int) {
	e.got = append(e.got, e.In()[:n]...)
	e.Conn.Take(n)
}

// until turns until done.
func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for !done() {
		w.turn()
		if time.Now().After(w.failed) {
			for i, s := range w.sides {
				for _, e := range s.conns {
					w.t.Logf("side %d: %+v", i, *e.Conn)
				}
			}
			w.t.Fatal("it does not come: ", what)
		}
	}
}

// connected makes a connection to a port of side 1, and returns both ends.
func (w *world) connected(port uint16, v6 bool) (a, b *end) {
	w.t.Helper()
	n := len(w.sides[1].conns)
	a = w.call(netip.AddrPortFrom(addresses[v6][1], port))
	w.until("a connection", func() bool { return a.connected && len(w.sides[1].conns) > n })
	return a, w.sides[1].conns[n]
}

// bytesOf returns n bytes that tell a number.
func bytesOf(number uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(number, 2))
	for at := 0; at+8 <= n; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], r.Uint64())
	}
	return b
}

func family(v6 bool) string { return fmt.Sprintf("IPv%d", map[bool]int{false: 4, true: 6}[v6]) }

package tap

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// socket is a pair of sockets that preserve frame boundaries, as a TAP's descriptor does; near is
// our end.
func socket(t *testing.T) (near, far int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
	return fds[0], fds[1]
}

// onSockets returns a port without a device, with some queues, and their far ends.
func onSockets(t *testing.T, mtu, queues int, dev opened) (p *uplink, far []int) {
	t.Helper()
	for range queues {
		a, b := socket(t)
		dev.fds, far = append(dev.fds, a), append(far, b)
	}
	dev.close = func() error { return nil }
	p, err := newUplink("none", mtu, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, far
}

// TestOnlyFramesOfValidLengthAreSent: frames from the shortest to the longest are sent, others are dropped. If a
// frame finds no room, it waits with those behind it.
func TestOnlyFramesOfValidLengthAreSent(t *testing.T) {
	p, far := onSockets(t, 1500, 1, opened{header: vnetHeaderLen})
	var list [][]byte
	for _, n := range []int{13, 14, 1518, 1519} {
		list = append(list, make([]byte, n))
	}
	if n, err := p.Write(list, false); n != len(list) || err != nil {
		t.Fatal(n, err)
	}
	if s := p.Stats(); s.TxFrames != 2 || s.TxBytes != 14+1518 || s.TxDropped != 2 {
		t.Errorf("%+v", s)
	}
	b := make([]byte, 2000)
	for _, want := range []int{14, 1518} {
		if n, err := unix.Read(far[0], b); n != vnetHeaderLen+want || err != nil {
			t.Errorf("%d bytes, want %d behind the header, %v", n, want, err)
		}
	}
	full := slices.Repeat([][]byte{make([]byte, 1514)}, 10_000) // more than a socket holds
	n, err := p.Write(full, false)
	if n == 0 || n == len(full) || err != nil || p.Stats().TxDropped != 2 || p.Stats().TxFrames != uint64(2+n) {
		t.Errorf("%d of %d are taken, %v, %+v", n, len(full), err, p.Stats())
	}
	if again, err := p.Write(full[n:], false); again != 0 || err != nil {
		t.Errorf("%d more are taken, %v", again, err)
	}
}

// TestOnlyFramesOfValidLengthAreAccepted: frames from the shortest to the longest are accepted, unless a short buffer
// may have cut them.
func TestOnlyFramesOfValidLengthAreAccepted(t *testing.T) {
	const mtu, longest = 1500, 1518
	for _, tc := range []struct {
		buf, size int
		ok        bool
	}{
		{2000, -1, false},
		{2000, 0, false},
		{2000, 13, false},
		{2000, 14, true},
		{2000, longest, true},
		{2000, longest + 1, false},
		{longest, longest, true},
		{longest - 1, longest - 1, false},
		{longest - 1, longest - 2, true},
		{60, 60, false},
	} {
		p := &uplink{mtu: mtu}
		var got Received
		ok := p.accept(make([]byte, tc.buf), tc.size, &got)
		want := Stats{RxDropped: 1}
		if tc.ok {
			want = Stats{RxFrames: 1, RxBytes: uint64(tc.size)}
		}
		if ok != tc.ok || p.stats != want || ok && got.Len != tc.size {
			t.Errorf("%d bytes in %d: taken %t, %+v", tc.size, tc.buf, ok, p.stats)
		}
	}
}

// TestSuperframesAreAcceptedIfNegotiated: a port that has negotiated superframes accepts one, and counts its
// datagrams.
func TestSuperframesAreAcceptedIfNegotiated(t *testing.T) {
	const headers = ethernetLen + ipv4Len + udpLen
	for _, tc := range []struct {
		payload, segment, datagrams int // 0: it is refused
	}{
		{1001, 1000, 2},
		{2000, 1000, 2},
		{2001, 1000, 3},
		{1000, 1000, 0}, // one is no superframe
		{1, 1000, 0},
		{maxSegments * 10, 10, maxSegments},
		{maxSegments*10 + 1, 10, 0},
		{2000, 1500 - ipv4Len - udpLen, 2},
		{2000, 1500 - ipv4Len - udpLen + 1, 0},
	} {
		for _, agreed := range []bool{false, true} {
			h, f := super(tc.payload, tc.segment)
			p := &uplink{mtu: 1500, dev: opened{header: vnetHeaderLen}, caps: Capabilities{USO: agreed}}
			h.put(p.rx.header[:])
			var got Received
			ok := p.accept(append(f, make([]byte, 10)...), len(f), &got)
			want := Stats{RxDropped: 1}
			if taken := agreed && tc.datagrams > 0; taken {
				want = Stats{RxFrames: uint64(tc.datagrams), RxBytes: uint64(tc.payload + tc.datagrams*headers), RxSuperframes: 1}
			}
			if ok != (want.RxSuperframes == 1) || p.stats != want || ok && got != (Received{Len: len(f), Segment: tc.segment}) {
				t.Errorf("%+v, agreed on %t: %t, %+v, %+v", tc, agreed, ok, got, p.stats)
			}
		}
	}
	if n := (Received{Len: 100}).datagrams(headers); n != 1 {
		t.Errorf("a plain frame counts as %d", n)
	}
}

// TestOnlyWholeUDPDatagramsShareHeaders: only a whole, nonempty UDP datagram in one packet without options has headers that
// others can share.
func TestOnlyWholeUDPDatagramsShareHeaders(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f, headers := plain(v6, 10)
		at := func(i int, v byte) func(f []byte) []byte {
			return func(f []byte) []byte { f[ethernetLen+i] = v; return f }
		}
		changes := map[string]func(f []byte) []byte{
			"another type": func(f []byte) []byte { f[12] ^= 1; return f },
			"a byte less":  func(f []byte) []byte { return f[:len(f)-1] },
			"a byte more":  func(f []byte) []byte { return append(f, 0) },
		}
		if v6 {
			changes["version"], changes["TCP"], changes["length"] = at(0, 0x40), at(6, 6), at(5, 17)
		} else {
			changes["version"], changes["options"], changes["TCP"] = at(0, 0x65), at(0, 0x46), at(9, 6)
			changes["fragment"], changes["offset"], changes["reserved"] = at(6, 0x20), at(7, 1), at(6, 0x80)
			changes["length"] = at(3, 37)
			if n := headersOf(at(6, 0x40)(bytes.Clone(f))); n != headers {
				t.Errorf("one that may not be fragmented: %d", n)
			}
		}
		if n := headersOf(f); n != headers {
			t.Errorf("IPv6 %t: %d, want %d", v6, n, headers)
		}
		for name, change := range changes {
			b := change(bytes.Clone(f))
			if n := headersOf(b); n != 0 {
				t.Errorf("IPv6 %t, %s: %d", v6, name, n)
			}
			if n := Cut(make([]byte, 200), b, 5, 0); n != 0 {
				t.Errorf("IPv6 %t, %s: %d bytes are cut from it", v6, name, n)
			}
		}
	}
}

// TestAReadEndsAfterABurst: a Read ends when it has read a burst, from any queues, and the next Read returns
// the rest.
func TestAReadEndsAfterABurst(t *testing.T) {
	const size, queues = readBurst / 4, 6
	p, far := onSockets(t, size, queues, opened{})
	for i, fd := range far {
		f := make([]byte, size)
		f[0] = byte(i)
		if _, err := unix.Write(fd, f); err != nil {
			t.Fatal(err)
		}
	}
	bufs, got := make([][]byte, queues), make([]Received, queues)
	for i := range bufs {
		bufs[i] = make([]byte, BufferSize(p))
	}
	seen := map[byte]bool{}
	for i, want := range []int{4, 2, 0} {
		n, err := p.Read(bufs, got)
		if n != want || err != nil {
			t.Fatalf("read %d: %d frames, %v", i, n, err)
		}
		for _, b := range bufs[:n] {
			seen[b[0]] = true
		}
	}
	if len(seen) != queues {
		t.Errorf("frames of %d queues", len(seen))
	}
}

// TestQueuesInTurn: if all queues have frames, each Read starts with another queue.
func TestQueuesInTurn(t *testing.T) {
	const queues, each = 3, 4
	p, far := onSockets(t, 1500, queues, opened{})
	for range each {
		for i, fd := range far {
			f := make([]byte, 60)
			f[0] = byte(i)
			if _, err := unix.Write(fd, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	bufs, got := [][]byte{make([]byte, BufferSize(p))}, make([]Received, 1)
	var order []byte
	for range queues {
		if n, err := p.Read(bufs, got); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		order = append(order, bufs[0][0])
	}
	if slices.Sort(order); !bytes.Equal(order, []byte{0, 1, 2}) {
		t.Errorf("%d reads, of queues %v", queues, order)
	}
}

// onSocket returns a function's port without a device, and its far end.
func onSocket(t *testing.T) (f *Function, far int) {
	near, far := socket(t)
	return &Function{name: "none", fd: near, mtu: 1500, v: newVector(functionParts)}, far
}

// TestAFramesOffloadIsWrittenBeforeIt: a frame's offload is written in front of it; a frame that is not taken is
// counted.
func TestAFramesOffloadIsWrittenBeforeIt(t *testing.T) {
	f, far := onSocket(t)
	long, short := make([]byte, 200), make([]byte, 60)
	for _, tc := range []struct {
		parts [][]byte
		off   Offload
		want  vnetHeader
	}{
		{[][]byte{short}, Offload{}, vnetHeader{}},
		{[][]byte{short}, Offload{CsumStart: 34, CsumOffset: 6}, vnetHeader{}}, // of no checksum
		{
			[][]byte{short},
			Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 6},
			vnetHeader{flags: 1, csumStart: 34, csumOffset: 6},
		},
		{
			[][]byte{long, short},
			Offload{GSO: 1, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 16},
			vnetHeader{flags: 1, gsoType: 1, gsoSize: 100, headerLen: 34 + 60, csumStart: 34, csumOffset: 16},
		},
		{
			[][]byte{short, long},
			Offload{GSO: 1, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 16},
			vnetHeader{flags: 1, gsoType: 1, gsoSize: 100, headerLen: 60, csumStart: 34, csumOffset: 16},
		},
	} {
		before := f.Stats()
		if !f.Write(tc.parts, tc.off) {
			t.Fatal("not taken")
		}
		b, whole := make([]byte, 1000), bytes.Join(tc.parts, nil)
		n, err := unix.Read(far, b)
		if err != nil || n != vnetHeaderLen+len(whole) {
			t.Fatal(n, err)
		}
		if h := parseVnetHeader(b); h != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.off, h, tc.want)
		}
		want := before
		want.TxFrames, want.TxBytes = want.TxFrames+1, want.TxBytes+uint64(len(whole))
		if tc.off.GSO != 0 {
			want.TxSuperframes++
		}
		if f.Stats() != want {
			t.Errorf("%+v, want %+v", f.Stats(), want)
		}
	}
	sent := f.Stats().TxFrames
	for f.Write([][]byte{long}, Offload{}) { // until the socket is full
		sent++
	}
	if s := f.Stats(); s.TxFrames != sent || s.TxDropped != 1 {
		t.Errorf("%+v, of which %d are sent", s, sent)
	}
}

// TestAFrameIsReadWithItsOffload: a frame is read with its offload; one that is too short is counted.
func TestAFrameIsReadWithItsOffload(t *testing.T) {
	f, far := onSocket(t)
	send := func(h vnetHeader, n int) {
		b := make([]byte, vnetHeaderLen+n)
		h.put(b)
		if _, err := unix.Write(far, b); err != nil {
			t.Fatal(err)
		}
	}
	send(vnetHeader{}, 13)
	send(vnetHeader{}, 14)
	send(vnetHeader{flags: 1, gsoType: 1, gsoSize: 100, headerLen: 54, csumStart: 34, csumOffset: 16}, 1000)
	send(vnetHeader{flags: 2}, 60) // a checksum that is known to be right
	b := make([]byte, FunctionBuffer)
	for _, want := range []struct {
		n   int
		off Offload
	}{
		{14, Offload{}},
		{1000, Offload{GSO: 1, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 16}},
		{60, Offload{}},
		{0, Offload{}},
	} {
		if n, off, err := f.Read(b); n != want.n || off != want.off || err != nil {
			t.Errorf("%d bytes, %+v, %v; want %+v", n, off, err, want)
		}
	}
	if s := f.Stats(); s != (Stats{RxFrames: 3, RxBytes: 14 + 1000 + 60, RxDropped: 1, RxSuperframes: 1}) {
		t.Errorf("%+v", s)
	}
}

// TestASuperframesChecksumIsOfItsPseudoHeader: a superframe's UDP checksum is the sum of its pseudo header, which the
// kernel completes (RFC 768, RFC 8200 §8.1).
func TestASuperframesChecksumIsOfItsPseudoHeader(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		first, headers := plain(v6, 1000)
		addrs := first[ethernetLen+12 : ethernetLen+20]
		if v6 {
			addrs = first[ethernetLen+8 : ethernetLen+40]
		}
		for i := range addrs { // their sum carries
			addrs[i] = byte(0xff - i)
		}
		total := headers + 30_000
		b, vnet := make([]byte, headers), make([]byte, vnetHeaderLen)
		putHeaders(vnet, b, first, total, headers)
		datagram := total - headers + udpLen
		s := uint32(unix.IPPROTO_UDP) + uint32(datagram)
		for i := 0; i < len(addrs); i += 2 {
			s += uint32(binary.BigEndian.Uint16(addrs[i:]))
		}
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		udp := b[headers-udpLen:]
		got, length := binary.BigEndian.Uint16(udp[udpCheckAt:]), binary.BigEndian.Uint16(udp[4:])
		if uint32(got) != s || int(length) != datagram {
			t.Errorf("IPv6 %t: %#x, want %#x; %d bytes", v6, got, s, length)
		}
		want := vnetHeader{
			flags: 1, gsoType: gsoUDPL4, headerLen: uint16(headers), gsoSize: 1000,
			csumStart: uint16(headers - udpLen), csumOffset: udpCheckAt,
		}
		if h := parseVnetHeader(vnet); h != want {
			t.Errorf("IPv6 %t: %+v, want %+v", v6, h, want)
		}
	}
}

// TestRoomOfSlots: each slot of a queue has its own memory, of the full size.
func TestRoomOfSlots(t *testing.T) {
	const slots, size = 3, 8
	q := NewQueue(slots, size)
	for i := range slots {
		b := q.Slot()
		if len(b) != size || cap(b) != size {
			t.Fatalf("slot %d has %d bytes of %d", i, len(b), cap(b))
		}
		for k := range b {
			b[k] = byte(10*i + k)
		}
		q.CommitAt(i, size-i)
	}
	if q.Slot() != nil {
		t.Error("one more slot")
	}
	for i, f := range q.Pending() {
		if len(f) != size-i || f[0] != byte(10*i+i) || f[len(f)-1] != byte(10*i+size-1) {
			t.Errorf("frame %d: %v", i, f)
		}
	}
}

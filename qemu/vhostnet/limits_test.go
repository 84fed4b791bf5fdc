package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// Features of the device, Virtio §5.1.3 and §6.
const (
	guestCsum = 1 << 1
	guestTSO4 = 1 << 7
	guestTSO6 = 1 << 8
	guestECN  = 1 << 9
	merge     = 1 << 15
	indirect  = 1 << 28
	guestUSO4 = 1 << 54
	guestUSO6 = 1 << 55
)

// driven is a port without a conversation, whose rings the test drives as the guest's driver.
type driven struct {
	*vhostnet.Port
	t     *testing.T
	st    *vhostuser.State
	mem   []byte
	rings []*vhosttest.Queue // receive and transmit in turn
	next  uint64             // free memory
}

// newDriven runs pairs of rings of a size.
func newDriven(t *testing.T, features uint64, pairs int, size uint16) *driven {
	t.Helper()
	p, err := vhostnet.New(vhostnet.Config{Name: "test", MTU: 1500, Queues: pairs, Post: func(f func()) bool { f(); return true }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	d := &driven{Port: p, t: t, mem: make([]byte, 4<<20), next: 1 << 20}
	d.st = &vhostuser.State{
		Features: features, Regions: []vhostuser.Region{{Size: uint64(len(d.mem))}},
		Vrings: make([]vhostuser.Vring, 2*pairs),
	}
	at := uint64(0)
	for i := range d.st.Vrings {
		q := vhosttest.NewQueue(d.mem, vhosttest.QueueConfig{At: at, Size: size, Indirect: features&indirect != 0})
		at += vhosttest.QueueBytes(size)
		desc, driver, device := q.Parts()
		d.st.Vrings[i] = vhostuser.Vring{Num: size, Desc: desc, Avail: driver, Used: device}
		d.rings = append(d.rings, q)
	}
	if err := p.SetMemory(d.st, []*vhostuser.Mapping{{Region: d.st.Regions[0], Mem: d.mem}}); err != nil {
		t.Fatal(err)
	}
	for i := range d.rings {
		d.start(i)
	}
	return d
}

func (d *driven) start(i int) {
	d.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := d.StartVring(d.st, i, fd, -1, -1); err != nil {
		d.t.Fatal(err)
	}
}

// add makes a chain available in a ring, of buffers with these lengths that follow each other in
// memory, and returns where it begins, and whether the device is to be kicked.
func (d *driven) add(i int, write bool, lengths ...int) (mem []byte, kick bool) {
	d.t.Helper()
	var bufs []vhosttest.Buffer
	begin := d.next
	for _, n := range lengths {
		bufs = append(bufs, vhosttest.Buffer{Addr: d.next, Len: uint32(n), Write: write})
		d.next += uint64(n)
	}
	if _, ok := d.rings[i].Add(bufs...); !ok {
		d.t.Fatal("no room in the ring")
	}
	return d.mem[begin:d.next], d.rings[i].Show()
}

// used are the lengths of the buffers that came back in a ring.
func (d *driven) used(i int) (lengths []int) {
	for {
		_, n, ok := d.rings[i].Used()
		if !ok {
			return lengths
		}
		lengths = append(lengths, int(n))
	}
}

// TestHeaderLength: the header has the number of buffers, unless a driver of before Virtio 1.0
// merges none (Virtio §5.1.6.1).
func TestHeaderLength(t *testing.T) {
	for features, header := range map[uint64]int{0: 10, merge: 12, vhostuser.FeatureVersion1: 12, merge | vhostuser.FeatureVersion1: 12} {
		d := newDriven(t, features, 1, 16)
		sent, _ := d.add(1, false, header+60)
		sent[header] = 42
		buf := make([]byte, 100)
		if n, _, _ := d.Read(buf); n != 60 || buf[0] != 42 {
			t.Errorf("features %#x: %d bytes read, the first is %d", features, n, buf[0])
		}
		got, _ := d.add(0, true, 100)
		if !d.Write([][]byte{buf[:60]}, vhostnet.Offload{}) {
			t.Fatal("not written")
		}
		d.Settle()
		if n := d.used(0); !slices.Equal(n, []int{header + 60}) || !bytes.Equal(got[header:][:60], buf[:60]) {
			t.Errorf("features %#x: buffers of %d bytes came back, want %d", features, n, header+60)
		}
		if header == 12 && binary.LittleEndian.Uint16(got[10:]) != 1 {
			t.Errorf("features %#x: a frame in %d buffers", features, binary.LittleEndian.Uint16(got[10:]))
		}
	}
}

// TestTakesWhatWasTaken: what is left to do in a frame is the guest's business if its driver has
// taken all that this needs, and for no other reason.
func TestTakesWhatWasTaken(t *testing.T) {
	d := newDriven(t, 0, 1, 16)
	all := vhostnet.Features(1)
	for _, tt := range []struct {
		o     vhostnet.Offload
		needs []uint64
	}{
		{vhostnet.Offload{}, nil},
		{vhostnet.Offload{NeedsCsum: true}, []uint64{guestCsum}},
		{vhostnet.Offload{NeedsCsum: true, GSO: 1}, []uint64{guestCsum, guestTSO4}},
		{vhostnet.Offload{NeedsCsum: true, GSO: 4}, []uint64{guestCsum, guestTSO6}},
		{vhostnet.Offload{NeedsCsum: true, GSO: 5}, []uint64{guestCsum, guestUSO4, guestUSO6}},
		{vhostnet.Offload{NeedsCsum: true, GSO: 1 | 0x80}, []uint64{guestCsum, guestTSO4, guestECN}},
		{vhostnet.Offload{NeedsCsum: true, GSO: 4 | 0x80}, []uint64{guestCsum, guestTSO6, guestECN}},
		{vhostnet.Offload{GSO: 1}, []uint64{guestCsum, guestTSO4}},
	} {
		takes := func(features uint64) bool {
			d.StopVring(0)
			d.st.Features = features
			d.start(0)
			return d.Takes(tt.o)
		}
		enough := uint64(0)
		for _, bit := range tt.needs {
			enough |= bit
			if takes(all &^ bit) {
				t.Errorf("%+v is taken without feature %#x", tt.o, bit)
			}
		}
		if !takes(enough) {
			t.Errorf("%+v is not taken with features %#x", tt.o, enough)
		}
	}
}

// TestSizesOfFrames: a frame has a whole Ethernet header and is not longer than there is room for
// it. What is neither is counted, and its buffers come back.
func TestSizesOfFrames(t *testing.T) {
	d := newDriven(t, vhostuser.FeatureVersion1, 1, 64)
	buf := make([]byte, 1000)
	var want vhostnet.Stats
	for size, ok := range map[int]bool{0: false, 13: false, 14: true, 15: true, 999: true, 1000: true, 1001: false} {
		d.add(1, false, 12+size)
		n, rest, _ := d.Read(buf)
		if ok {
			want.RxFrames++
			want.RxBytes += uint64(size)
		} else {
			want.RxDropped++
		}
		if ok != (n == size && n > 0) || !ok && n != 0 || rest != nil {
			t.Errorf("a frame of %d bytes: %d read", size, n)
		}
	}
	d.add(1, false, 11) // not even a header
	want.RxDropped++
	if n, _, _ := d.Read(buf); n != 0 {
		t.Errorf("%d bytes of half a header", n)
	}
	d.add(0, true, 500)
	for _, size := range []int{488, 20} { // for which there is no buffer any more
		ok := d.Write([][]byte{buf[:14], buf[:size-14]}, vhostnet.Offload{})
		if ok != (size == 488) {
			t.Errorf("a frame of %d bytes written: %t", size, ok)
		}
	}
	want.TxFrames, want.TxBytes, want.TxDropped = 1, 488, 1
	if got := d.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	d.Settle()
	if n := len(d.used(1)); n != 8 {
		t.Errorf("%d chains came back", n)
	}
}

// TestQueuesTakeTurns: a guest that sends by one queue all the time does not keep what it sends by
// others waiting.
func TestQueuesTakeTurns(t *testing.T) {
	const n = vhostnet.QueueBurst + 8
	d := newDriven(t, vhostuser.FeatureVersion1, 2, 64)
	for q := range 2 {
		for range n {
			mem, _ := d.add(1+2*q, false, 12+60)
			mem[12+20] = byte(q)
		}
	}
	buf := make([]byte, 100)
	var runs []int // frames that came one after the other by the same queue
	for range 2 * n {
		if size, _, _ := d.Read(buf); size != 60 {
			t.Fatalf("%d bytes", size)
		}
		if len(runs)%2 == int(buf[20]) {
			runs = append(runs, 0)
		}
		runs[len(runs)-1]++
	}
	if want := []int{vhostnet.QueueBurst, vhostnet.QueueBurst, 8, 8}; !slices.Equal(runs, want) {
		t.Errorf("frames by turns %v, want %v", runs, want)
	}
}

// TestArmWithFrames: whichever queue has a frame, a port that is to sleep does not, and asks for no
// kicks; once all are read each queue asks for one.
func TestArmWithFrames(t *testing.T) {
	for waiting := range 2 {
		d := newDriven(t, vhostuser.FeatureVersion1, 2, 64)
		d.Wake()
		send := func(q int) (kick bool) {
			_, kick = d.add(1+2*q, false, 12+60)
			return kick
		}
		if send(waiting) {
			t.Error("a port that is awake asks for a kick")
		}
		if !d.Arm() {
			t.Errorf("queue %d has a frame, and the port sleeps", waiting)
		}
		for q := range 2 {
			if send(q) {
				t.Errorf("queue %d has a frame, and the port asks for kicks by %d", waiting, q)
			}
		}
		buf := make([]byte, 100)
		for range 3 {
			if n, _, _ := d.Read(buf); n != 60 {
				t.Fatalf("%d bytes", n)
			}
		}
		for range 2 {
			if d.Arm() {
				t.Error("frames of nobody")
			}
		}
		for q := range 2 {
			if !send(q) {
				t.Errorf("a port that sleeps asks for no kick by queue %d", q)
			}
		}
		if d.Arm() {
			t.Error("a port that sleeps looks for frames")
		}
	}
}

// TestMergedBuffers: a frame takes as many receive buffers as it needs, no more, and their number
// is in its header (Virtio §5.1.6.4). One for which there are too few takes none.
func TestMergedBuffers(t *testing.T) {
	const each = 100
	for size, want := range map[int][]int{
		each - 13:   {each - 1},
		each - 12:   {each},
		each - 11:   {each, 1},
		2*each - 13: {each, each - 1},
		2*each - 12: {each, each},
		2*each - 11: {each, each, 1},
		3*each - 12: {each, each, each},
		3*each - 11: nil,
	} {
		d := newDriven(t, vhostuser.FeatureVersion1|merge, 1, 16)
		var mem []byte
		for range 3 {
			b, _ := d.add(0, true, each)
			if mem == nil {
				mem = b
			}
		}
		mem = mem[:3*each] // they follow each other
		frame := frameOf(rand.New(rand.NewPCG(1, 1)), size)
		if ok := d.Write([][]byte{frame[:20], frame[20:]}, vhostnet.Offload{}); ok != (want != nil) {
			t.Errorf("%d bytes: written %t", size, ok)
		}
		d.Settle()
		if n := d.used(0); !slices.Equal(n, want) {
			t.Errorf("%d bytes: buffers with %d came back, want %d", size, n, want)
		}
		if want != nil {
			if n := int(binary.LittleEndian.Uint16(mem[10:])); n != len(want) || !bytes.Equal(mem[12:][:size], frame) {
				t.Errorf("%d bytes: the header says %d buffers", size, n)
			}
			continue
		}
		if !d.Write([][]byte{frame[:each-12]}, vhostnet.Offload{}) || d.Reason() != "" {
			t.Errorf("after one that was too long none is written: %s", d.Reason())
		}
		d.Settle()
		if n := d.used(0); !slices.Equal(n, []int{each}) {
			t.Errorf("after one that was too long: buffers with %d", n)
		}
	}
}

// TestMostBuffers: a frame that would take more than so many buffers is lost, however many there
// are.
func TestMostBuffers(t *testing.T) {
	const each = 13
	for more := range 2 {
		d := newDriven(t, vhostuser.FeatureVersion1|merge, 1, 512)
		for range vhostnet.MaxBuffers + 10 {
			d.add(0, true, each)
		}
		size := vhostnet.MaxBuffers*each - 12 + more
		if ok := d.Write([][]byte{make([]byte, size)}, vhostnet.Offload{}); ok != (more == 0) {
			t.Errorf("a frame of %d bytes in buffers of %d: written %t", size, each, ok)
		}
		d.Settle()
		if n := len(d.used(0)); n != (1-more)*vhostnet.MaxBuffers || d.Reason() != "" {
			t.Errorf("a frame of %d bytes: %d buffers came back, %s", size, n, d.Reason())
		}
	}
}

// TestReceiveChains: a receive buffer may have several parts, wherever header and frame end in
// them.
func TestReceiveChains(t *testing.T) {
	for _, parts := range [][]int{
		{12, 60},
		{12, 30, 30},
		{5, 7, 60},
		{5, 3, 4, 1, 59},
		{11, 61},
		{13, 58, 1},
		{72, 10},
		{12, 100, 100},
		{1, 1, 1, 1, 100},
	} {
		for _, cut := range []int{1, 20, 59, 60} {
			d := newDriven(t, vhostuser.FeatureVersion1, 1, 16)
			mem, _ := d.add(0, true, parts...)
			frame := frameOf(rand.New(rand.NewPCG(1, 1)), 60)
			if !d.Write([][]byte{frame[:cut], frame[cut:]}, vhostnet.Offload{}) {
				t.Fatal("not written")
			}
			d.Settle()
			if n := d.used(0); !slices.Equal(n, []int{72}) || !bytes.Equal(mem[12:72], frame) {
				t.Errorf("parts of %d bytes: %d bytes written", parts, n)
			}
			if !bytes.Equal(mem[72:], make([]byte, len(mem)-72)) {
				t.Errorf("parts of %d bytes: something was written behind the frame", parts)
			}
		}
	}
}

// TestLimitsOfPorts: a port has one pair of queues at least and MaxQueues at most, and a ledger
// that is large enough for their rings, if any.
func TestLimitsOfPorts(t *testing.T) {
	for _, tt := range []struct {
		queues, ledger int // -1: none
		ok             bool
	}{
		{0, -1, true},
		{1, -1, true},
		{vhostnet.MaxQueues, -1, true},
		{vhostnet.MaxQueues + 1, -1, false},
		{0, vhostnet.LedgerBytes(1), true},
		{0, vhostnet.LedgerBytes(1) - 1, false},
		{2, vhostnet.LedgerBytes(2), true},
		{2, vhostnet.LedgerBytes(2) - 1, false},
		{2, vhostnet.LedgerBytes(2) + 1, true},
		{1, 0, false},
	} {
		c := vhostnet.Config{Name: "test", Queues: tt.queues}
		if tt.ledger >= 0 {
			c.Ledger = make([]byte, tt.ledger)
		}
		p, err := vhostnet.New(c)
		if (err == nil) != tt.ok {
			t.Errorf("%d queues with a ledger of %d bytes: %v", tt.queues, tt.ledger, err)
		}
		if err == nil {
			if n := p.Layout().Rings; n != 2*max(tt.queues, 1) {
				t.Errorf("%d queues: %d rings", tt.queues, n)
			}
			_ = p.Close()
		}
	}
}

// TestLayout: a port has two rings for each pair of queues, and of the protocol what QEMU's network
// device and User Mode Linux need: several queues, acknowledgements, the MTU, a channel for
// requests, and memory in slots (vhost-user, "Protocol features").
func TestLayout(t *testing.T) {
	want := vhostuser.Layout{Rings: 6, Queues: 3, Protocol: 1<<0 | 1<<3 | 1<<4 | 1<<5 | 1<<15}
	if got := vhostnet.Layout(3); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLedgersOfRings: each ring has a part of the port's ledger of its own, one after the other.
func TestLedgersOfRings(t *testing.T) {
	mem := make([]byte, vhostnet.LedgerBytes(2))
	at := 0
	for i := range 4 {
		l := vhostnet.LedgerOf(mem, i)
		if &l[0] != &mem[at] || cap(l) != len(l) {
			t.Errorf("ring %d: elsewhere", i)
		}
		at += len(l)
	}
	if at != len(mem) || vhostnet.LedgerOf(nil, 1) != nil {
		t.Errorf("four rings have %d bytes of %d", at, len(mem))
	}
}

// TestWhatIsLeft: of a long frame the end is left where it is, as long as there is room to note it:
// 64 ends of a port, in 256 pieces.
func TestWhatIsLeft(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parts []int // of each chain
		left  int   // of 70 frames
	}{
		{"shorter", []int{12 + vhostnet.MinRest - 1}, 0},
		{"long", []int{12 + vhostnet.MinRest}, 64},
		{"header apart", []int{12, vhostnet.MinRest}, 64},
		{"4 pieces", []int{312, 2000, 2000, 2000}, 64},
		{"5 pieces", []int{312, 1000, 1000, 1000, 1000}, 51},
		{"8 pieces", []int{312, 800, 800, 800, 800, 800, 800, 800}, 32},
		{"4 pieces of 8", []int{6, 6, 128, 128, 2000, 2000, 2000, 2000}, 63},
	} {
		d := newDriven(t, vhostuser.FeatureVersion1|indirect, 1, 128)
		size := -12
		for _, n := range tt.parts {
			size += n
		}
		bufs := make([][]byte, 70)
		rests := make([]*vhostnet.Rest, 70)
		left := 0
		for i := range bufs {
			mem, _ := d.add(1, false, tt.parts...)
			for k := range mem[12:] {
				mem[12+k] = byte(i + k*7)
			}
			bufs[i] = make([]byte, size)
			n, rest, _ := d.Read(bufs[i])
			if rests[i] = rest; rest != nil {
				left++
				n += rest.Len()
			}
			if n != size {
				t.Fatalf("%s: frame %d has %d bytes, want %d", tt.name, i, n, size)
			}
		}
		if left != tt.left {
			t.Errorf("%s: %d ends are left, want %d", tt.name, left, tt.left)
		}
		d.Return()
		d.Settle()
		if n := len(d.used(1)); n != 70 || d.Reason() != "" {
			t.Errorf("%s: %d chains came back, %s", tt.name, n, d.Reason())
		}
		for i, b := range bufs {
			if rests[i] != nil && !rests[i].Fetch() {
				t.Errorf("%s: frame %d is lost", tt.name, i)
			}
			for k := range b {
				if b[k] != byte(i+k*7) {
					t.Fatalf("%s: byte %d of frame %d is %#x", tt.name, k, i, b[k])
				}
			}
		}
	}
}

package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// barePort is a port without a front end: the test makes the calls that a front end's messages would
// cause.
type barePort struct {
	*vhostnet.Port
	t  *testing.T
	st *vhostuser.State
}

// newBarePort has pairs of queues in mem, of which no ring runs yet: each has 1024 bytes.
func newBarePort(t *testing.T, pairs int, mem []byte) *barePort {
	t.Helper()
	const size = 16
	p, err := vhostnet.New(vhostnet.Config{Name: "test", MTU: 1500, Queues: pairs, Post: func(f func()) bool { f(); return true }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	b := &barePort{p, t, &vhostuser.State{Regions: []vhostuser.Region{{Size: uint64(len(mem))}}, Vrings: make([]vhostuser.Vring, 2*pairs)}}
	for i := range b.st.Vrings {
		at := uint64(i) * 1024
		b.st.Vrings[i] = vhostuser.Vring{Num: size, Desc: at, Avail: at + 256, Used: at + 512}
	}
	b.use(mem)
	return b
}

func (b *barePort) use(mem []byte) {
	b.t.Helper()
	if err := b.SetMemory(b.st, []*vhostuser.Mapping{{Region: b.st.Regions[0], Mem: mem}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *barePort) start(i int) {
	b.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := b.StartVring(b.st, i, fd, -1, -1); err != nil {
		b.t.Fatal(err)
	}
}

// send has a guest send a frame of 60 bytes at an address, in descriptor 0 of ring i.
func send(mem []byte, i int, addr uint64) {
	ring := mem[i*1024:]
	binary.LittleEndian.PutUint64(ring, addr)
	binary.LittleEndian.PutUint32(ring[8:], 10+60) // without features the header has no count of buffers
	binary.LittleEndian.PutUint16(ring[256+2:], 1)
}

// TestFailedPortWorksAfterANewStart: a port with a misplaced ring gives the reason and does
// nothing, whichever rings its driver starts or stops, until all are stopped. It works again when
// the next ring starts.
func TestFailedPortWorksAfterANewStart(t *testing.T) {
	mem := make([]byte, 8*1024)
	b := newBarePort(t, 2, mem)
	send(mem, 3, 4096)
	buf := make([]byte, 2000)
	right := b.st.Vrings[1].Used
	b.st.Vrings[1].Used += 2 // Virtio §2.7: aligned to 4
	for i := range b.st.Vrings {
		b.start(i)
		if failed := b.Reason() != ""; failed != (i >= 1) {
			t.Errorf("with ring %d: reason %q", i, b.Reason())
		}
	}
	b.StopVring(3)
	b.start(3)
	if !strings.Contains(b.Reason(), "ring 1") {
		t.Errorf("reason %q, want that of ring 1", b.Reason())
	}
	if n, _ := readWhole(b.Port, buf); n != 0 {
		t.Errorf("%d bytes read from a port that has failed", n)
	}
	for i := range b.st.Vrings {
		b.StopVring(i)
	}
	if b.Reason() == "" {
		t.Error("the reason is forgotten before a driver begins anew")
	}
	b.st.Vrings[1].Used = right
	if b.start(0); b.Reason() != "" {
		t.Errorf("a driver that has begun anew: reason %q", b.Reason())
	}
	b.start(3)
	if n, _ := readWhole(b.Port, buf); n != 60 {
		t.Errorf("%d bytes read for a driver that has begun anew, want 60", n)
	}
}

// TestRingsFollowTheMemory: rings continue when their memory is mapped again. A port whose rings
// are in memory that is gone gives that as the reason.
func TestRingsFollowTheMemory(t *testing.T) {
	mem := make([]byte, 4096)
	p := newBarePort(t, 1, mem)
	for i := range p.st.Vrings {
		p.start(i)
	}
	moved := bytes.Clone(mem)
	p.use(moved)
	if p.Reason() != "" {
		t.Fatalf("fault %q", p.Reason())
	}
	send(moved, 1, 2048)
	moved[2048+10] = 0x42
	buf := make([]byte, 2000)
	if n, _ := readWhole(p.Port, buf); n != 60 || buf[0] != 0x42 {
		t.Errorf("%d bytes read from the new memory", n)
	}
	p.Settle()
	p.use(moved[:700]) // the ring for what is sent is not in it
	if p.Reason() == "" {
		t.Error("no fault without the memory of a ring")
	}
}

// TestImpossiblePortsAreRefused: a port has one pair of queues at least and MaxQueues at most, and
// a ledger that is large enough for their rings, if any.
func TestImpossiblePortsAreRefused(t *testing.T) {
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

// TestLayoutOfAPort: a port has two rings for each pair of queues, and of the protocol what QEMU's
// network device and User Mode Linux need: several queues, acknowledgements, the MTU, a channel for
// requests, and memory in slots (vhost-user, "Protocol features").
func TestLayoutOfAPort(t *testing.T) {
	want := vhostuser.Layout{Rings: 6, Queues: 3, Protocol: 1<<0 | 1<<3 | 1<<4 | 1<<5 | 1<<15}
	if got := vhostnet.Layout(3); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestEachRingHasItsLedger: each ring has a part of the port's ledger of its own, one after the
// other.
func TestEachRingHasItsLedger(t *testing.T) {
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

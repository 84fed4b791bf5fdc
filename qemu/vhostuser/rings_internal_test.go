package vhostuser

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// TestRingRunsWhenItIsComplete: a ring runs when it has a size, addresses and a kick descriptor,
// and is enabled; those of a front end without the protocol's feature always are.
func TestRingRunsWhenItIsComplete(t *testing.T) {
	whole := Vring{Num: 8, HasAddr: true, HasKick: true, Enabled: true}
	edit := func(f func(*Vring)) Vring { v := whole; f(&v); return v }
	for _, c := range []struct {
		v                 Vring
		with, withoutBits bool // the protocol's feature
	}{
		{whole, true, true},
		{edit(func(v *Vring) { v.Num = 0 }), false, false},
		{edit(func(v *Vring) { v.HasAddr = false }), false, false},
		{edit(func(v *Vring) { v.HasKick = false }), false, false},
		{edit(func(v *Vring) { v.Enabled = false }), false, true},
		{Vring{Enabled: true}, false, false},
		{Vring{}, false, false},
	} {
		s := State{Vrings: []Vring{c.v}}
		if s.ready(0) != c.withoutBits {
			t.Errorf("%+v without the protocol's feature: ready %t", c.v, !c.withoutBits)
		}
		s.Features = FeatureProtocol | FeatureVersion1
		if s.ready(0) != c.with {
			t.Errorf("%+v with the protocol's feature: ready %t", c.v, !c.with)
		}
	}
}

// TestPartsMayEndWithTheMemory: each part of a ring may end where memory ends, and not a byte
// later.
func TestPartsMayEndWithTheMemory(t *testing.T) {
	const user, gpa, size = 0x7000_0000, 0x1000, 0x1000
	for _, features := range []uint64{0, FeaturePacked} {
		lengths := [3]uint64{16 * 8, 6 + 2*8, 6 + 8*8}
		if features != 0 {
			lengths = [3]uint64{16 * 8, 4, 4}
		}
		for part, n := range lengths {
			for _, past := range []uint64{0, 1} {
				at := [3]uint64{user, user + 0x100, user + 0x200}
				at[part] = user + size - n + past
				s := State{
					Features: features, Regions: []Region{{GPA: gpa, User: user, Size: size}},
					Vrings: []Vring{{Num: 8, Desc: at[0], Avail: at[1], Used: at[2]}},
				}
				desc, avail, used, err := s.RingGPA(0)
				if (err == nil) != (past == 0) {
					t.Errorf("features %#x: part %d passes the end by %d: %v", features, part, past, err)
				}
				if want := [3]uint64{at[0] - user + gpa, at[1] - user + gpa, at[2] - user + gpa}; err == nil && [3]uint64{desc, avail, used} != want {
					t.Errorf("features %#x: parts at %#x, %#x and %#x, want %#x", features, desc, avail, used, want)
				}
			}
		}
	}
}

// TestSizesAndBasesAreChecked: a ring has up to 32768 entries, of a split one a power of two, whose
// base is an index of 16 bits. A ring that runs keeps both.
func TestSizesAndBasesAreChecked(t *testing.T) {
	for _, c := range []struct {
		request Request
		num     uint32
		split   bool // taken
		packed  bool
	}{
		{SetVringNum, 0, false, false},
		{SetVringNum, 1, true, true},
		{SetVringNum, 2, true, true},
		{SetVringNum, 3, false, true},
		{SetVringNum, 32767, false, true},
		{SetVringNum, 32768, true, true},
		{SetVringNum, 32769, false, false},
		{SetVringNum, 65536, false, false},
		{SetVringNum, 1 << 31, false, false},
		{SetVringBase, 1, true, true},
		{SetVringBase, 0xffff, true, true},
		{SetVringBase, 0x10000, false, true},
		{SetVringBase, 0xffffffff, false, true},
	} {
		for _, packed := range []bool{false, true} {
			for _, running := range []bool{false, true} {
				conv := &Session{
					dev: plain{}, layout: Layout{Rings: 1},
					State: State{Features: FeatureProtocol, Vrings: []Vring{{Running: running}}},
				}
				want := c.split && !running
				if packed {
					conv.State.Features |= FeaturePacked
					want = c.packed && !running
				}
				err := conv.setVringState(&Message{Header: Header{Request: c.request}, Payload: VringState{Num: c.num}.Append(nil)})
				v := conv.State.Vrings[0]
				if is := uint32(v.Num) + v.Base; (err == nil) != want || want && is != c.num || !want && is != 0 {
					t.Errorf("%v %d, packed %t, running %t: %+v, %v", c.request, c.num, packed, running, v, err)
				}
			}
		}
	}
}

// TestRunningRingStaysWhereItIs: the addresses of a running ring cannot be changed.
func TestRunningRingStaysWhereItIs(t *testing.T) {
	for _, running := range []bool{false, true} {
		conv := &Session{dev: plain{}, layout: Layout{Rings: 1}, State: State{Vrings: []Vring{{Running: running}}}}
		err := conv.setVringAddr(&Message{Payload: VringAddr{Desc: 1, Used: 2, Avail: 3}.Append(nil)})
		v := conv.State.Vrings[0]
		if moved := v.Desc == 1 && v.Used == 2 && v.Avail == 3 && v.HasAddr; moved == running || (err != nil) != running {
			t.Errorf("running %t: %+v, %v", running, v, err)
		}
	}
}

// called is a Device that writes down the descriptors of a ring.
type called struct {
	Device
	log string
}

func (d *called) SetCall(i, call, errfd int) {
	d.log += fmt.Sprintf("ring %d: %t %t ", i, call != eventfd.None, errfd != eventfd.None)
}

// TestDescriptorsOfRingsAreChecked: each descriptor must be of a kind that the ring can use, and
// must come unless the message says that there is none. A refused one still belongs to the message.
func TestDescriptorsOfRingsAreChecked(t *testing.T) {
	const nothing, event, socket = 0, 1, 2
	for _, c := range []struct {
		request Request
		value   uint64
		comes   int
		ok      bool
		log     string
	}{
		{SetVringKick, 1, event, true, ""},
		{SetVringKick, 1, socket, false, ""},
		{SetVringKick, 1, nothing, false, ""},
		{SetVringKick, 1 | noFD, nothing, false, ""}, // the ring would have to be polled
		{SetVringKick, 1 | noFD, event, false, ""},
		{SetVringCall, 1, event, true, "ring 1: true false "},
		{SetVringCall, 1, socket, true, "ring 1: true false "},
		{SetVringCall, 1, nothing, false, ""},
		{SetVringCall, 1 | noFD, nothing, true, "ring 1: false false "},
		{SetVringCall, 1 | noFD, event, false, ""},
		{SetVringErr, 1, event, true, "ring 1: false true "},
		{SetVringErr, 1, socket, false, ""},
		{SetVringErr, 1 | noFD, nothing, true, "ring 1: false false "},
		{SetVringCall, 0, event, true, "ring 0: true false "},
		{SetVringCall, 2, event, false, ""},
		{SetVringCall, 0xff, event, false, ""},
		{SetVringCall, 1 | 1<<9, event, true, "ring 1: true false "}, // of other bits nothing is known
	} {
		dev := &called{}
		conv := &Session{dev: dev, layout: Layout{Rings: 2}, State: State{Vrings: make([]Vring, 2)}, fds: []ringFDs{noRingFDs, noRingFDs}}
		m := &Message{Header: Header{Request: c.request}, Payload: u64(c.value)}
		fd := descriptor(t, c.comes)
		m.giveBack(fd)
		err := conv.setVringFD(m)
		if (err == nil) != c.ok || dev.log != c.log {
			t.Errorf("%v %#x with descriptor %d: told %q, %v", c.request, c.value, c.comes, dev.log, err)
		}
		kept := conv.fds[c.value&1]
		has := map[Request]int{SetVringKick: kept.kick, SetVringCall: kept.call, SetVringErr: kept.err}[c.request]
		if c.ok && has != fd || !c.ok && kept != noRingFDs {
			t.Errorf("%v %#x: the ring has %+v", c.request, c.value, kept)
		}
		if left := m.FDs(); (left == 1) != (!c.ok && c.comes != nothing) {
			t.Errorf("%v %#x: %d descriptors are left in the message", c.request, c.value, left)
		}
		if kick := conv.State.Vrings[1].HasKick; kick != (c.ok && c.request == SetVringKick) {
			t.Errorf("%v %#x: has a kick descriptor %t", c.request, c.value, kick)
		}
		for i := range conv.fds {
			f := &conv.fds[i]
			replaceFD(&f.kick, eventfd.None)
			replaceFD(&f.call, eventfd.None)
			replaceFD(&f.err, eventfd.None)
		}
		m.Close()
	}
}

// descriptor makes one of a kind; 0: none.
func descriptor(t *testing.T, kind int) int {
	t.Helper()
	var fd int
	var err error
	switch kind {
	case 0:
		return eventfd.None
	case 1:
		fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	default:
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

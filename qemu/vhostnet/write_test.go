package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// TestOffloadsFollowTheFeatures: a frame with an offload is given to a guest only if its driver has
// accepted all features that the offload needs.
func TestOffloadsFollowTheFeatures(t *testing.T) {
	d := newRingPort(t, 0, 1, 16)
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

// TestFramesSpanMergedBuffers: a frame takes as many receive buffers as it needs, and their number
// is in its header (Virtio §5.1.6.4). A frame for which there are too few takes none.
func TestFramesSpanMergedBuffers(t *testing.T) {
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
		d := newRingPort(t, vhostuser.FeatureVersion1|merge, 1, 16)
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

// TestFrameSpansSoManyBuffers: a frame that would take more buffers than the limit is lost, however
// many there are.
func TestFrameSpansSoManyBuffers(t *testing.T) {
	const each = 13
	for more := range 2 {
		d := newRingPort(t, vhostuser.FeatureVersion1|merge, 1, 512)
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

// TestReceiveChainsAreFilledInOrder: a receive buffer may have several parts, wherever header and
// frame end in them.
func TestReceiveChainsAreFilledInOrder(t *testing.T) {
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
			d := newRingPort(t, vhostuser.FeatureVersion1, 1, 16)
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

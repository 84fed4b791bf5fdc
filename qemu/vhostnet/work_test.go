package vhostnet_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// wide is a port whose rings are as large as may be, of descriptors as flags and size say.
func wide(t *testing.T, size uint32, flags func(i int) uint16) (p *vhostnet.Port, mem []byte, tx, rx vhostuser.Vring) {
	t.Helper()
	const n = 32768
	mem = make([]byte, 4<<20)
	le := binary.LittleEndian
	st := &vhostuser.State{Features: merge | vhostuser.FeatureVersion1, Regions: []vhostuser.Region{{Size: uint64(len(mem))}}}
	for i := range uint64(2) {
		at := i << 20
		st.Vrings = append(st.Vrings, vhostuser.Vring{Num: n, Desc: at, Avail: at + 16*n, Used: at + 16*n + 1<<17})
		for j := range n {
			d := mem[int(at)+16*j:]
			le.PutUint64(d, 3<<20)
			le.PutUint32(d[8:], size)
			le.PutUint16(d[12:], flags(j)|uint16(vhosttest.DescWrite)*uint16(1-i))
			le.PutUint16(d[14:], uint16((j+1)%n))
			le.PutUint16(mem[int(at)+16*n+4+2*j:], uint16(j))
		}
		le.PutUint16(mem[at+16*n+2:], n)
	}
	return fuzzed(t, st, mem), mem, st.Vrings[1], st.Vrings[0]
}

// used returns the number of chains that the driver sees as completed.
func used(mem []byte, v *vhostuser.Vring) int {
	return int(binary.LittleEndian.Uint16(mem[v.Used+2:]))
}

// TestTurnOfAGuestIsBounded: a guest that fills its rings with invalid frames gets one turn's work
// at a time. The rest waits for the next turn, and after each turn the guest sees its completed
// chains.
func TestTurnOfAGuestIsBounded(t *testing.T) {
	p, mem, tx, _ := wide(t, 4, func(int) uint16 { return 0 }) // shorter than any frame
	b := make([]byte, 2048)
	for turns, before := 0, 0; ; turns++ {
		if n, _, _ := p.Read(b); n != 0 {
			t.Fatalf("a frame of %d bytes", n)
		}
		now := used(mem, &tx)
		if now-before > vhostnet.ReadWork || uint64(now) != p.Stats().RxDropped {
			t.Fatalf("%d frames were dropped in a turn, of %d in all, and %d are back", now-before, p.Stats().RxDropped, now)
		}
		if before = now; now == 32768 {
			if turns < 32768/vhostnet.ReadWork-1 {
				t.Errorf("it took %d turns", turns+1)
			}
			return
		}
		if p.Wake(); !p.Arm() {
			t.Fatal("nothing waits, and the ring is full")
		}
	}
}

// TestCrowdedRingTakesNoMoreThanATurn: writing frames to a guest examines no more of its ring in a
// turn than is allowed; frames for which that is not enough are lost.
func TestCrowdedRingTakesNoMoreThanATurn(t *testing.T) {
	// 255 empty buffers and one of a byte in each chain: a frame would need thousands of them.
	p, mem, _, rx := wide(t, 0, func(i int) uint16 {
		if i%256 == 255 {
			return 0
		}
		return vhosttest.DescNext
	})
	for i := 255; i < 32768; i += 256 {
		binary.LittleEndian.PutUint32(mem[int(rx.Desc)+16*i+8:], 1)
	}
	for i := range 32768 / 256 {
		binary.LittleEndian.PutUint16(mem[int(rx.Avail)+4+2*i:], uint16(256*i))
	}
	binary.LittleEndian.PutUint16(mem[rx.Avail+2:], 128)
	frame := make([]byte, 60)
	for range 1000 {
		if p.Write([][]byte{frame}, vhostnet.Offload{}) {
			t.Fatal("a frame of 60 bytes in so little room")
		}
	}
	if left := p.WriteWorkLeft(); left < 0 || left > 256 {
		t.Errorf("work for %d descriptors is left of the turn", left)
	}
	if n := p.Stats().TxDropped; n != 1000 || p.Reason() != "" {
		t.Errorf("%d frames dropped, %q", n, p.Reason())
	}
	// The next turn has room again, when the driver has.
	binary.LittleEndian.PutUint32(mem[rx.Desc+8:], 2000)
	p.Settle()
	if !p.Write([][]byte{frame}, vhostnet.Offload{}) {
		t.Error("the frame was dropped, and there is room")
	}
}

// FuzzWork: whatever the guest has in its rings, a turn takes no more of them than its work, be
// they frames or not, and what was dropped is shown.
func FuzzWork(f *testing.F) {
	f.Add(uint64(1), uint32(4), uint8(0))
	f.Add(uint64(2), uint32(0), uint8(255))
	f.Add(uint64(3), uint32(100), uint8(3))
	f.Add(uint64(4), uint32(70000), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, size uint32, long uint8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, mem, tx, _ := wide(t, size%100_000, func(int) uint16 {
			if rng.IntN(int(long)+1) != 0 {
				return vhosttest.DescNext
			}
			return 0
		})
		b := make([]byte, 70_000)
		for range 20 {
			frames, before := 0, p.Stats()
			for {
				n, _, _ := p.Read(b)
				if n == 0 {
					break
				}
				if frames++; frames > vhostnet.ReadWork {
					t.Fatal("the turn does not end")
				}
			}
			now := p.Stats()
			if took := now.RxFrames + now.RxDropped - before.RxFrames - before.RxDropped; took > vhostnet.ReadWork {
				t.Fatalf("%d frames in a turn", took)
			}
			p.Settle()
			if p.Reason() == "" && used(mem, &tx) != int(now.RxFrames+now.RxDropped) {
				t.Fatalf("the driver sees %d chains of %+v", used(mem, &tx), now)
			}
		}
	})
}

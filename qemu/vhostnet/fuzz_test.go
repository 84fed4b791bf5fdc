package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// FuzzPort runs two ports over whatever guests may have in their memory, which changes meanwhile.
// Frames go from the first to both.
func FuzzPort(f *testing.F) {
	const size, end = 8, 8192
	desc := func(b []byte, addr uint64, n uint32, x, y uint16) []byte {
		b = binary.LittleEndian.AppendUint64(b, addr)
		b = binary.LittleEndian.AppendUint32(b, n)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, x), y)
	}
	// Receive ring at 0, available and used behind it; transmit ring at 256; buffers from 512 on.
	for _, long := range []uint32{90, 6000} {
		split := desc(desc(make([]byte, 0, end), 512, 100+long, 2, 0), 640, 300+long, 2, 0)
		split = append(split[:128], 0, 0, 2, 0, 0, 0, 1, 0)
		split = desc(split[:256], 512, 12, 1, 1)
		split = desc(split, 524, long, 0, 0)
		split = append(split[:384], 0, 0, 1, 0)
		f.Add(split, uint64(1), uint64(0))
		f.Add(split, uint64(2), uint64(1<<15|1<<28|1<<29))
		ring := desc(desc(make([]byte, 0, end), 512, 100+long, 0, 0x82), 640, 300+long, 1, 0x82)
		ring = desc(ring[:256], 512, 12, 0, 0x81)
		ring = desc(ring, 524, long, 0, 0x80)
		f.Add(ring, uint64(3), uint64(1<<15|1<<34))
		f.Add(ring, uint64(4), uint64(1<<28|1<<29|1<<34))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed, features uint64) {
		mem, other := make([]byte, end), make([]byte, end)
		copy(mem, b)
		copy(other, b)
		st := &vhostuser.State{Features: features & vhostnet.Features(1), Regions: []vhostuser.Region{{Size: end}}, Vrings: make([]vhostuser.Vring, 2)}
		for i := range st.Vrings {
			at := uint64(i) * 256
			st.Vrings[i] = vhostuser.Vring{Num: size, Desc: at, Avail: at + 128, Used: at + 160}
			if st.Packed() {
				st.Vrings[i].Base = 0x8000
			}
		}
		p, to := fuzzed(t, st, mem), fuzzed(t, st, other)
		rng := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 7000)
		var rest *vhostnet.Rest
		n := 0
		for range 64 {
			switch rng.IntN(8) {
			case 0, 1:
				if n, rest, _ = p.Read(buf); rest == nil {
					if n != 0 && n < 14 || n > len(buf) {
						t.Fatalf("a frame of %d bytes", n)
					}
				} else if n < 128 || n+rest.Len() > len(buf) {
					t.Fatalf("a frame of %d bytes and %d", n, rest.Len())
				}
			case 2:
				p.Write([][]byte{buf[:60], buf[:rng.IntN(140)]}, vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 9})
			case 3:
				p.Settle()
				to.Settle()
			case 4:
				p.Wake()
			case 5:
				if rest != nil {
					was := bytes.Clone(buf[:n])
					to.WriteWith(buf[:n], rest, vhostnet.Offload{})
					if !bytes.Equal(was, buf[:n]) {
						t.Fatal("what was read has changed")
					}
				}
			case 6:
				if rest != nil && rng.IntN(2) == 0 {
					rest.Fetch()
				}
			default:
				p.Arm()
			}
			mem[rng.IntN(end)] = byte(rng.Uint32())
			other[rng.IntN(512)] = byte(rng.Uint32())
		}
		for i := range st.Vrings {
			p.StopVring(i)
			to.StopVring(i)
		}
	})
}

// fuzzed is a port that serves rings in memory.
func fuzzed(t *testing.T, st *vhostuser.State, mem []byte) *vhostnet.Port {
	p, err := vhostnet.New(vhostnet.Config{
		Name: "fuzz", MTU: 1500, Ledger: make([]byte, vhostnet.LedgerBytes(1)),
		Post: func(f func()) bool { f(); return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.SetMemory(st, []*vhostuser.Mapping{{Region: st.Regions[0], Mem: mem}}); err != nil {
		t.Fatal(err)
	}
	for i := range st.Vrings {
		if err := p.StartVring(st, i, -1, -1, -1); err != nil && i == 0 {
			t.Fatal(err)
		}
	}
	return p
}

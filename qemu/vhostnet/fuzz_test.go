package vhostnet_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// FuzzPort runs a port over whatever a guest may have in its memory, which changes meanwhile.
func FuzzPort(f *testing.F) {
	const size, end = 8, 1024
	desc := func(b []byte, addr uint64, n uint32, x, y uint16) []byte {
		b = binary.LittleEndian.AppendUint64(b, addr)
		b = binary.LittleEndian.AppendUint32(b, n)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, x), y)
	}
	// Receive ring at 0, available and used behind it; transmit ring at 256; buffers from 512 on.
	split := desc(desc(make([]byte, 0, end), 512, 100, 2, 0), 640, 300, 2, 0)
	split = append(split[:128], 0, 0, 2, 0, 0, 0, 1, 0)
	split = desc(split[:256], 512, 12, 1, 1)
	split = desc(split, 524, 90, 0, 0)
	split = append(split[:384], 0, 0, 1, 0)
	f.Add(split, uint64(1), uint64(0))
	f.Add(split, uint64(2), uint64(1<<15|1<<28|1<<29))
	ring := desc(desc(make([]byte, 0, end), 512, 100, 0, 0x82), 640, 300, 1, 0x82)
	ring = desc(ring[:256], 512, 12, 0, 0x81)
	ring = desc(ring, 524, 90, 0, 0x80)
	f.Add(ring, uint64(3), uint64(1<<15|1<<34))
	f.Add(ring, uint64(4), uint64(1<<28|1<<29|1<<34))
	f.Fuzz(func(t *testing.T, b []byte, seed, features uint64) {
		mem := make([]byte, end)
		copy(mem, b)
		p, err := vhostnet.New(vhostnet.Config{
			Name: "fuzz", MTU: 1500, Ledger: make([]byte, vhostnet.LedgerBytes(1)),
			Post: func(f func()) bool { f(); return true },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		st := &vhostuser.State{Features: features & vhostnet.Features(1), Regions: []vhostuser.Region{{Size: end}}, Vrings: make([]vhostuser.Vring, 2)}
		for i := range st.Vrings {
			at := uint64(i) * 256
			st.Vrings[i] = vhostuser.Vring{Num: size, Desc: at, Avail: at + 128, Used: at + 160}
			if st.Packed() {
				st.Vrings[i].Base = 0x8000
			}
		}
		if err := p.SetMemory(st, []*vhostuser.Mapping{{Region: st.Regions[0], Mem: mem}}); err != nil {
			t.Fatal(err)
		}
		for i := range st.Vrings {
			if err := p.StartVring(st, i, -1, -1, -1); err != nil && i == 0 {
				t.Fatal(err)
			}
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 200)
		for range 64 {
			switch rng.IntN(6) {
			case 0, 1:
				if n, _ := p.Read(buf); n != 0 && n < 14 || n > len(buf) {
					t.Fatalf("a frame of %d bytes", n)
				}
			case 2:
				p.Write([][]byte{buf[:60], buf[:rng.IntN(140)]}, vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 9})
			case 3:
				p.Settle()
			case 4:
				p.Wake()
			default:
				p.Arm()
			}
			mem[rng.IntN(end)] = byte(rng.Uint32())
		}
		for i := range st.Vrings {
			p.StopVring(i)
		}
	})
}

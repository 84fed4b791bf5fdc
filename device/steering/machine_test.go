package steering_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/steering"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// run executes a program on a frame as the kernel does (RFC 9669), as far as programs of this
// package need it, and returns the queue. A load beyond the frame ends the program with queue 0.
func run(t *testing.T, code []uint64, frame []byte) uint64 {
	t.Helper()
	var r [11]uint64
	load := func(at uint64, n int) (v uint64, ok bool) {
		if at+uint64(n) > uint64(len(frame)) {
			return 0, false
		}
		for _, b := range frame[at : at+uint64(n)] {
			v = v<<8 | uint64(b)
		}
		return v, true
	}
	for at, steps := 0, 0; at < len(code); at, steps = at+1, steps+1 {
		if steps > 1000 {
			t.Fatal("the program does not end")
		}
		c := code[at]
		dst, src, jump, number := &r[c>>8&15], r[c>>12&15], int(int16(c>>16)), uint64(int64(int32(c>>32)))
		ok := true
		switch op := c & 0xff; op {
		case 0x30:
			r[0], ok = load(number, 1)
		case 0x28:
			r[0], ok = load(number, 2)
		case 0x50:
			r[0], ok = load(src+number, 1)
		case 0x40:
			r[0], ok = load(src+number, 4)
		case 0xb7:
			*dst = number
		case 0xbf:
			*dst = src
		case 0x57:
			*dst &= number
		case 0x77:
			*dst >>= number
		case 0x97:
			*dst %= number
		case 0x05:
			at += jump
		case 0x15, 0x55:
			if (*dst == number) == (op == 0x15) {
				at += jump
			}
		case 0x95:
			return r[0]
		default:
			t.Fatalf("instruction %d, %#x, is not known", at, c)
		}
		if !ok {
			return 0
		}
	}
	t.Fatal("the program has no end")
	return 0
}

// TestTheProgramSteersFramesToTheirShard: each sealed frame goes to the queue of its shard, in every encapsulation. All
// other frames, and truncated ones, go to the first queue.
func TestTheProgramSteersFramesToTheirShard(t *testing.T) {
	for _, transport := range []bool{false, true} {
		for _, shards := range []int{1, 3, 16} {
			code := steering.Program(transport, shards)
			try := func(what string, frame []byte, want uint64) {
				t.Helper()
				if queue := run(t, code, frame); queue != want {
					t.Errorf("transport %v, %d shards: %s goes to queue %d, want %d", transport, shards, what, queue, want)
				}
			}
			for _, outer6 := range []bool{false, true} {
				ip := 20
				if outer6 {
					ip = 40
				}
				for _, inner6 := range []bool{false, true} {
					for shard := range uint32(16) {
						f := outer(outer6, underlay.SealedPort, falcon(transport, inner6, shard<<20|0xf4123))
						try(fmt.Sprintf("shard %d, %v in %v", shard, inner6, outer6), f, uint64(shard))
					}
					whole := outer(outer6, underlay.SealedPort, falcon(transport, inner6, 9<<20))
					cid := len(whole) - 40 // the CID ends here, Falcon's bytes follow
					try("a frame that ends with its CID", whole[:cid], 9)
					for n := range cid {
						try(fmt.Sprintf("a frame of %d bytes", n), whole[:n], 0)
					}
				}
				for _, spi := range []uint32{1, 16, 77, 1<<32 - 1} {
					h := psp.Header{NextHeader: psp.NextHeaderIPv4, CryptOffset: 2, HasVC: true, SPI: spi}
					f := outer(outer6, underlay.SealedPort, append(h.Append(nil), make([]byte, 60)...))
					try(fmt.Sprintf("SPI %d", spi), f, uint64(spi)%uint64(shards))
				}
				changed := func(at int, to byte) []byte {
					f := outer(outer6, underlay.SealedPort, falcon(transport, false, 5<<20))
					f[at] = to
					return f
				}
				try("another EtherType", changed(12, 0x81), 0)
				try("another EtherType", changed(13, 0x06), 0)
				try("another port", changed(14+ip+2, 0x7f), 0)
				try("another port", changed(14+ip+3, 0x7f), 0)
				if !outer6 {
					try("IP with options", changed(14, 0x46), 0)
					try("TCP", changed(14+9, 6), 0)
				} else {
					try("TCP", changed(14+6, 6), 0)
				}
			}
			arp := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6}, make([]byte, 46)...)
			binary.BigEndian.PutUint16(arp[14+22:], underlay.SealedPort)
			try("ARP", arp, 0)
		}
	}
}

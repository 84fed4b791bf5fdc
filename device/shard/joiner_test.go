package shard

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

// joiner makes superframes as the TAP's kernel does, from consecutive frames of one length. Two
// bytes behind each frame hold what tap.Received would say.
type joiner struct {
	joined int // superframes made
	bufs   [txSlots][]byte
	out    [][]byte
}

func (j *joiner) join(frames [][]byte) [][]byte {
	j.out = j.out[:0]
	for len(frames) > 0 {
		first, run := frames[0], 1
		total := len(first)
		for run < len(frames) && len(frames[run]) == len(first) && len(first) > underlay.Headroom && total+len(first) < 1<<16 {
			total += len(first) - underlay.Headroom
			run++
		}
		buf, segment := &j.bufs[len(j.out)], 0
		*buf = append((*buf)[:0], first...)
		if run > 1 {
			j.joined++
			segment = len(first) - underlay.Headroom
			for _, f := range frames[1:run] {
				*buf = append(*buf, f[underlay.Headroom:]...)
			}
			setLengths(*buf)
		}
		*buf = binary.BigEndian.AppendUint16(*buf, uint16(segment))
		j.out, frames = append(j.out, *buf), frames[run:]
	}
	return j.out
}

// split removes the trailer.
func (j *joiner) split(b []byte) (frame []byte, segment int) {
	n := len(b) - 2
	if n < 0 {
		return nil, 0
	}
	return b[:n], int(binary.BigEndian.Uint16(b[n:]))
}

// setLengths sets the lengths in the outer IPv4 and UDP header to cover all of f.
func setLengths(f []byte) {
	ip, udp := f[14:34], f[34:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
}

// TestSuperframesImpaired sends superframes over a wire that loses, repeats, reorders and damages
// them, segment sizes included: every byte arrives, and every packet of a superframe is counted
// once.
func TestSuperframesImpaired(t *testing.T) {
	v := newVirtual(t, 1, sim.Impairment{Delay: 100_000, Jitter: 20_000, Loss: 0.02, Duplicate: 0.01, Corrupt: 0.02})
	v.super = &joiner{}
	a, b := pair(v)
	exchange(t, a, b, 200_000)
	if v.super.joined == 0 {
		t.Fatal("no superframe was made")
	}
	for i, s := range v.all() {
		if d, n := s.underlay.Stats()[underlay.Deliver], accounted(s); d != n {
			t.Errorf("shard %d: %d packets delivered by the underlay, %d accounted for", i, d, n)
		}
	}
}

package shard

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// arpReply returns an ARP reply to a side, sent by a station with this MAC in the name of the other
// side.
func arpReply(v *virtual, side int, mac [6]byte) []byte {
	to, of := v.shards[side].cfg.Uplink, v.shards[1-side].cfg.Uplink
	f := append(append(to.MAC[:len(to.MAC):len(to.MAC)], mac[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	f = append(append(f, mac[:]...), of.Address.Addr().AsSlice()...)
	return append(append(f, to.MAC[:]...), to.Address.Addr().AsSlice()...)
}

// TestAttackARP lets a station on the underlay answer ARP in a peer's name. The peer's address
// stays the one from which its packets authenticate.
func TestAttackARP(t *testing.T) {
	thief := [6]byte{2, 0xbd, 0, 0, 0, 0x66}
	write := func(t *testing.T, v *virtual, a, b *driver, within falcon.Time) {
		t.Helper()
		began := v.now
		a.send(abi.OpWrite, 0, 4096, b, 0)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("WRITE: %s", cqe.Status)
		}
		if took := v.now - began; took > within {
			t.Errorf("a WRITE took %d µs", took/1000)
		}
	}
	t.Run("while packets pass", func(t *testing.T) {
		v := newVirtual(t, 51, wire100us)
		a, b := pair(v)
		write(t, v, a, b, 1e6)
		for range 50 {
			v.inject(0, arpReply(v, 0, thief))
			v.inject(1, arpReply(v, 1, thief))
			write(t, v, a, b, 1e6)
			v.idle(500e6)
		}
		for i := range v.nics { // a frame to a shard that does not know the peer is no claim of its address
			n := v.sum(i, func(s *Shard) uint64 { return s.underlay.Stats()[underlay.Claim] })
			if n > 50 || n < 50 && len(v.nics[i]) == 1 || n == 0 {
				t.Errorf("side %d counted %d claims, want 50", i, n)
			}
		}
	})
	t.Run("while nothing passes", func(t *testing.T) {
		v := newVirtual(t, 52, wire100us)
		a, b := pair(v)
		for range 5 {
			write(t, v, a, b, 1e9)
			v.idle(40e9)
			for range 20 {
				v.inject(0, arpReply(v, 0, thief))
				v.idle(30e6)
			}
		}
	})
	t.Run("before the peer answers", func(t *testing.T) {
		v := newVirtual(t, 53, wire100us)
		a, b := pair(v)
		v.idle(100e9) // the neighbours are forgotten
		answers := 0
		v.tap = func(from int, f []byte) []byte {
			if from == 1 && binary.BigEndian.Uint16(f[12:]) == 0x0806 && f[21] == 2 {
				answers++
				v.links[1].Send(v.now, arpReply(v, 0, thief))
			}
			return f
		}
		write(t, v, a, b, 1e9)
		write(t, v, a, b, 1e6)
		if answers == 0 {
			t.Error("nobody was asked")
		}
	})
	t.Run("with a packet of the peer's", func(t *testing.T) {
		v := newVirtual(t, 54, wire100us)
		a, b := pair(v)
		var seen []byte
		v.tap = func(from int, f []byte) []byte {
			if from == 1 && binary.BigEndian.Uint16(f[12:]) == 0x0800 {
				seen = bytes.Clone(f)
			}
			return f
		}
		for range 20 {
			write(t, v, a, b, 1e6)
			copy(seen[6:], thief[:])
			v.inject(0, arpReply(v, 0, thief))
			v.inject(0, bytes.Clone(seen))
		}
		write(t, v, a, b, 1e6)
	})
	t.Run("the peer moves", func(t *testing.T) {
		v := newVirtual(t, 55, wire100us)
		a, b := pair(v)
		write(t, v, a, b, 1e6)
		moved := [6]byte{2, 0xbd, 0, 0, 0, 0x77}
		v.tap = func(from int, f []byte) []byte {
			f = bytes.Clone(f)
			switch {
			case from == 1:
				copy(f[6:], moved[:])
			case bytes.Equal(f[:6], moved[:]):
				copy(f, v.shards[1].cfg.Uplink.MAC[:])
			case f[0]&1 == 0:
				return nil // the other side is gone
			}
			return f
		}
		v.inject(0, arpReply(v, 0, moved))
		b.send(abi.OpWrite, 0, 4096, a, 0)
		if cqe := b.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("WRITE: %s", cqe.Status)
		}
		write(t, v, a, b, 1e6)
	})
}

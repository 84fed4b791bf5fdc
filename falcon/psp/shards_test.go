package psp

import (
	"errors"
	"testing"
)

// sealFor issues an SPI of a shard, and seals a packet with it.
func sealFor(t *testing.T, d *RxSADB, class Class, owner uint64, shard int) (spi uint32, sealed []byte) {
	t.Helper()
	spi, key, err := d.IssueTo(0, class, owner, shard)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := NewGatewayTxSA(0, spi, key, 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	sealed = make([]byte, tx.Overhead()+20)
	if _, err := tx.Seal(1, NextHeaderIPv4, sealed, 20); err != nil {
		t.Fatal(err)
	}
	return spi, sealed
}

// TestAnSPIIsOfTheShardAskedFor: an SPI is of the shard it was asked for in either phase, and a packet of class gateway
// is opened in that shard alone, one of class Falcon in any.
func TestAnSPIIsOfTheShardAskedFor(t *testing.T) {
	const shards = 3
	d := NewRxSADB(testMaster(t), 100, shards)
	var open [shards]*Opener
	for i := range open {
		open[i] = d.Opener(i)
	}
	seen := map[uint32]bool{}
	for phase := range uint32(2) {
		for n := range 4 * shards {
			shard := n * 2 % shards
			for _, class := range []Class{ClassFalcon, ClassGateway} {
				spi, sealed := sealFor(t, d, class, uint64(n), shard)
				if seen[spi] || int(spi)%shards != shard || spi>>31 != phase {
					t.Fatalf("SPI %#x for shard %d in phase %d, issued before: %v", spi, shard, phase, seen[spi])
				}
				seen[spi] = true
				for i, o := range open {
					if got, ok := o.Shard(sealed); ok != (class == ClassGateway) || ok && got != shard {
						t.Errorf("class %d: shard %d, %v, want %d", class, got, ok, shard)
					}
					b := append([]byte(nil), sealed...)
					h, _, _, err := o.Open(b)
					if class == ClassGateway && i != shard {
						if !errors.Is(err, ErrUnknownSPI) {
							t.Errorf("packet of shard %d in shard %d: %v", shard, i, err)
						}
					} else if err != nil || h.Owner != uint64(n) || h.Class != class {
						t.Errorf("class %d, shard %d in shard %d: %v, owner %d", class, shard, i, err, h.Owner)
					}
				}
			}
		}
		d.Rotate(&[32]byte{7})
	}
}

// TestAPacketOfNoSPIMayGoToAnyShard: a packet shorter than a header, or of an SPI that is not in use, may go to any
// shard.
func TestAPacketOfNoSPIMayGoToAnyShard(t *testing.T) {
	d := NewRxSADB(testMaster(t), 100, 2)
	spi, sealed := sealFor(t, d, ClassGateway, 0, 1)
	o := d.Opener(0)
	for n := range len(sealed) {
		if _, ok := o.Shard(sealed[:n]); ok != (n >= BaseLen) {
			t.Errorf("%d bytes: %v", n, ok)
		}
	}
	d.Forget(spi)
	if _, ok := o.Shard(sealed); ok {
		t.Error("the shard of an SPI that has ended is known")
	}
}

// TestAShardHasNoSPIAfterItsLast: a shard's last SPI of a master key is issued, and then the shard has none, though
// others may.
func TestAShardHasNoSPIAfterItsLast(t *testing.T) {
	d := NewRxSADB(Master{}, 100, 2)
	d.next[0] = PhaseBit - 2
	if spi, _, err := d.IssueTo(0, ClassGateway, 0, 1); err != nil || spi != PhaseBit-1 {
		t.Fatalf("SPI %#x, %v", spi, err)
	}
	for shard := range 2 {
		if _, _, err := d.IssueTo(0, ClassGateway, 0, shard); !errors.Is(err, ErrExhausted) {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
}

// TestHeaderFieldsAreCut: values are cut to their fields, and the reserved bits of a peer are
// ignored.
func TestHeaderFieldsAreCut(t *testing.T) {
	h := Header{Version: 0xf3, CryptOffset: 0xff}
	b := h.Append(nil)
	if b[2] != MaxCryptOffset || b[3] != VersionGMAC256<<2|1 {
		t.Errorf("encoded %x", b)
	}
	b[2] = 0xc5
	if got, _, err := ParseHeader(b); err != nil || got.CryptOffset != 5 {
		t.Errorf("crypt offset %d, %v", got.CryptOffset, err)
	}
}

// TestGuardSamePhase: two SPIs of the second phase belong to one generation, like two of the first.
func TestGuardSamePhase(t *testing.T) {
	for _, phase := range []uint32{0, PhaseBit} {
		a := NewAssociation(AssociationConfig{SPI: phase | 5, Generation: 3, AnyPCID: true, Margin: 1})
		a.Rekey(phase|6, 3)
		g := a.Guard(0)
		for _, spi := range []uint32{5, 6} {
			if err := g.Check(&Header{SPI: phase | spi, IV: 1}, fixed{Generation{Current: 3}}); err != nil {
				t.Errorf("SPI %#x: %v", phase|spi, err)
			}
		}
		if err := g.Check(&Header{SPI: phase ^ PhaseBit | 5, IV: 1}, fixed{Generation{Current: 3}}); !errors.Is(err, ErrSPI) {
			t.Errorf("the same number in the other phase: %v", err)
		}
	}
}

// TestABufferOfExactlyThePacketIsEnough: a buffer that holds the packet exactly is enough, one byte less is not.
func TestABufferOfExactlyThePacketIsEnough(t *testing.T) {
	payload := make([]byte, 20)
	for missing, want := range map[int]error{0: nil, 1: ErrBuffer} {
		_, tx := pair(t, 0, 2, true)
		b := make([]byte, tx.Overhead()+len(payload)-missing)
		if _, err := tx.Seal(1, NextHeaderIPv4, b, len(payload)); !errors.Is(err, want) {
			t.Errorf("%d bytes missing: %v", missing, err)
		}
		if _, err := tx.SealFrom(2, NextHeaderIPv4, b, payload); !errors.Is(err, want) {
			t.Errorf("%d bytes missing, from elsewhere: %v", missing, err)
		}
	}
}

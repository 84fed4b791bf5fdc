package psp

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// pair returns a database and a TxSA for an SPI it issued.
func pair(t testing.TB, version, offset uint8, vc bool) (*RxSADB, *TxSA) {
	t.Helper()
	d := NewRxSADB(testMaster(t), 8, 1)
	spi, key, err := d.Issue(version, ClassFalcon)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := newTxSA(Header{Version: version, SPI: spi, CryptOffset: offset, HasVC: vc, VC: 0x0102030405060708}, key)
	if err != nil {
		t.Fatal(err)
	}
	return d, tx
}

// All versions, offsets and lengths, with and without a cookie.
func TestSealOpenRoundTrip(t *testing.T) {
	for version := range uint8(4) {
		for offset := range uint8(MaxCryptOffset + 1) {
			for _, vc := range []bool{false, true} {
				d, tx := pair(t, version, offset, vc)
				for _, payload := range []int{0, 3, 60, 244, 245, 252, 300, 1501} {
					b := make([]byte, tx.Overhead()+payload)
					for i := range b {
						b[i] = byte(i * 7)
					}
					want := bytes.Clone(b[tx.HeaderLen() : tx.HeaderLen()+payload])
					n, err := tx.Seal(5, NextHeaderIPv4, b, payload)
					if version < VersionGMAC128 && tx.HeaderLen()+payload < BaseLen+4*int(offset) {
						if !errors.Is(err, ErrMalformed) {
							t.Fatalf("offset %d beyond %d bytes: %v", offset, payload, err)
						}
						continue
					}
					if err != nil || n != len(b) {
						t.Fatal(n, err)
					}
					inClear := BaseLen + 4*int(offset) - tx.HeaderLen()
					if version >= VersionGMAC128 {
						inClear = payload
					}
					if inClear > 0 && !bytes.Equal(b[tx.HeaderLen():tx.HeaderLen()+inClear], want[:inClear]) {
						t.Fatal("bytes before the crypt offset changed")
					}
					hdr, off, clear, err := d.Opener(0).Open(b)
					if err != nil {
						t.Fatal(err)
					}
					if off != tx.HeaderLen() || hdr.HasVC != vc || vc && hdr.VC != 0x0102030405060708 || !bytes.Equal(clear, want) {
						t.Fatalf("version %d offset %d vc %v: %+v", version, offset, vc, hdr)
					}
				}
			}
		}
	}
}

func TestIVStrictlyIncreases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tx, err := NewTransportTxSA(0, 1, make([]byte, 16), 1)
		if err != nil {
			t.Fatal(err)
		}
		var last uint64
		for i, now := range rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 50).Draw(t, "clock") {
			b := make([]byte, 64)
			n, err := tx.Seal(now, NextHeaderFalcon, b, 20)
			if err != nil {
				t.Fatal(err)
			}
			h, _, err := ParseHeader(b[:n])
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 && h.IV != max(uint64(now)*1000, last+1) || i == 0 && h.IV != uint64(now)*1000 {
				t.Fatalf("IV %d after %d at %d ns", h.IV, last, now)
			}
			last = h.IV
		}
	})
}

func TestAnSASealsNothingBeyondItsLimits(t *testing.T) {
	b := make([]byte, 64)
	_, tx := pair(t, 0, 1, false)
	tx.limit = 3
	for range 3 {
		if _, err := tx.Seal(1, 4, b, 20); err != nil {
			t.Fatal(err)
		}
	}
	last := tx.LastIV()
	if _, err := tx.Seal(1, 4, b, 20); !errors.Is(err, ErrRekey) || tx.LastIV() != last || tx.Packets() != 3 {
		t.Fatalf("packet limit: %v", err)
	}
	_, tx = pair(t, 0, 1, false)
	if _, err := tx.Seal(1, 4, b, 20); err != nil {
		t.Fatal(err)
	}
	tx.first -= ivSpan - 1 // as if the first packet were 106 days ago
	if _, err := tx.Seal(1, 4, b, 20); !errors.Is(err, ErrRekey) {
		t.Fatalf("IV span: %v", err)
	}
	if _, err := tx.Seal(1, 4, b[:51], 20); !errors.Is(err, ErrBuffer) {
		t.Fatalf("short buffer: %v", err)
	}
	if _, err := tx.Seal(1, 4, b, -1); !errors.Is(err, ErrBuffer) {
		t.Fatalf("negative payload: %v", err)
	}
}

func TestNewTxSARefuses(t *testing.T) {
	for name, f := range map[string]func() (*TxSA, error){
		"SPI 0":          func() (*TxSA, error) { return NewTxSA(0, 0, make([]byte, 16), 0, 8) },
		"SPI 0x80000000": func() (*TxSA, error) { return NewTxSA(0, PhaseBit, make([]byte, 16), 0, 8) },
		"short key":      func() (*TxSA, error) { return NewTxSA(1, 1, make([]byte, 16), 0, 8) },
		"version":        func() (*TxSA, error) { return NewTxSA(4, 1, make([]byte, 16), 0, 8) },
		"offset":         func() (*TxSA, error) { return NewTxSA(0, 1, make([]byte, 16), 0, 64) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s accepted", name)
		}
	}
}

func TestAnInvalidPacketIsNotOpened(t *testing.T) {
	d, tx := pair(t, 0, 1, false)
	open := d.Opener(0)
	sealed := func() []byte {
		b := make([]byte, 64)
		n, err := tx.Seal(1, NextHeaderFalcon, b, 20)
		if err != nil {
			t.Fatal(err)
		}
		return b[:n]
	}
	b := sealed()
	b[3] = VersionGMAC128<<2 | 1
	if _, _, _, err := open.Open(b); !errors.Is(err, ErrVersion) {
		t.Errorf("other version: %v", err)
	}
	b = sealed()
	b[len(b)-1] ^= 1
	if _, _, _, err := open.Open(b); !errors.Is(err, ErrAuth) {
		t.Errorf("bad ICV: %v", err)
	}
	b = sealed()
	b[2] = 63
	if _, _, _, err := open.Open(b); !errors.Is(err, ErrMalformed) {
		t.Errorf("crypt offset beyond the packet: %v", err)
	}
	b = sealed()
	d.Forget(tx.SPI())
	if _, _, _, err := open.Open(b); !errors.Is(err, ErrUnknownSPI) {
		t.Errorf("forgotten SPI: %v", err)
	}
}

// Issue, forget and rotate in any order: no SPI twice, phase bit of the current phase, validity by
// generation.
func TestAnSPIIsUniqueAndEndsWithItsGeneration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := NewRxSADB(Master{}, 6, 1)
		open := d.Opener(0)
		seen := map[uint32]bool{}
		live := map[uint32]uint32{} // SPI → generation
		allow := false
		expire := func(oldest uint32) {
			for spi, g := range live {
				if g < oldest {
					delete(live, spi)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"issue": func(t *rapid.T) {
				spi, key, err := d.Issue(rapid.Uint8Range(0, 3).Draw(t, "version"), ClassFalcon)
				if full := len(live) == 6; full != errors.Is(err, ErrFull) {
					t.Fatalf("with %d live: %v", len(live), err)
				} else if full {
					return
				}
				if err != nil || seen[spi] || !ValidSPI(spi) || len(key) == 0 || spi>>31 != d.Generation().Current&1 {
					t.Fatalf("SPI %08x (%v) seen %v", spi, err, seen[spi])
				}
				seen[spi], live[spi] = true, d.Generation().Current
			},
			"forget": func(t *rapid.T) {
				for spi := range live {
					d.Forget(spi)
					delete(live, spi)
					return
				}
			},
			"rotate": func(t *rapid.T) {
				d.Rotate(&[32]byte{1})
				allow = true
				expire(d.Generation().Current - 1)
			},
			"retire": func(t *rapid.T) {
				d.Retire()
				allow = false
				expire(d.Generation().Current)
			},
			"": func(t *rapid.T) {
				if d.Len() != len(live) || d.Generation().AllowPrevious != allow {
					t.Fatalf("%d SPIs, model %d; %+v", d.Len(), len(live), d.Generation())
				}
				for spi := range seen {
					h := Header{SPI: spi, CryptOffset: 0}
					b := append(h.Append(nil), make([]byte, ICVLen)...)
					_, _, _, err := open.Open(b)
					if _, ok := live[spi]; ok == errors.Is(err, ErrUnknownSPI) {
						t.Fatalf("SPI %08x: live %v, %v", spi, ok, err)
					}
				}
			},
		})
	})
}

func TestSPIsRunOutUntilTheNextRotation(t *testing.T) {
	d := NewRxSADB(Master{}, 8, 1)
	d.next[0] = PhaseBit - 1
	if spi, _, err := d.Issue(0, ClassFalcon); err != nil || spi != PhaseBit-1 {
		t.Fatalf("%x %v", spi, err)
	}
	if _, _, err := d.Issue(0, ClassFalcon); !errors.Is(err, ErrExhausted) {
		t.Fatal(err)
	}
	d.Rotate(&[32]byte{})
	if spi, _, err := d.Issue(0, ClassFalcon); err != nil || spi != PhaseBit|1 {
		t.Fatalf("%x %v", spi, err)
	}
}

func TestSealAndOpenDoNotAllocate(t *testing.T) {
	for version := range uint8(4) {
		d, tx := pair(t, version, 8, true)
		b := make([]byte, tx.Overhead()+4096)
		g := NewAssociation(AssociationConfig{SPI: tx.SPI(), PCID: 0x0102030405060708, Margin: 1e9}).Guard(0)
		open := d.Opener(0)
		now := int64(0)
		if n := testing.AllocsPerRun(50, func() {
			now++
			if _, err := tx.Seal(now, 4, b, 4096); err != nil {
				t.Fatal(err)
			}
			h, _, _, err := open.Open(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Check(h, open); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("version %d: %v allocations", version, n)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for version := range uint8(4) {
		_, tx := pair(f, version, 8, true)
		b := make([]byte, tx.Overhead()+64)
		if _, err := tx.Seal(1, 4, b, 64); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		orig := bytes.Clone(b)
		if h, n, err := ParseHeader(b); err == nil {
			enc := h.Append(nil)
			orig[2] &= MaxCryptOffset // reserved bits are not kept
			if n != len(enc) || !bytes.Equal(enc, orig[:n]) {
				t.Fatalf("encoded %x, parsed %x", enc, orig[:n])
			}
		}
		d := NewRxSADB(testMaster(t), 8, 1)
		for version := range uint8(4) {
			if _, _, err := d.Issue(version, ClassFalcon); err != nil {
				t.Fatal(err)
			}
		}
		if hdr, off, clear, err := d.Opener(0).Open(b); err == nil && (off != hdr.Len() || len(clear) != len(b)-off-ICVLen) {
			t.Fatalf("opened %+v: %d bytes of %d", hdr, len(clear), len(b))
		}
	})
}

// An SA that follows another never goes back before its IVs, even when the clock does.
func TestAnSAContinuesAfterTheIVsItFollows(t *testing.T) {
	b := make([]byte, 64)
	_, old := pair(t, 0, 1, false)
	if _, err := old.Seal(5_000, 4, b, 20); err != nil {
		t.Fatal(err)
	}
	_, tx := pair(t, 0, 1, false)
	tx.Follow(old)
	for i, now := range []int64{10, 20, 5_000, 6_000} { // the clock went back, then forward
		want := max(uint64(now)*1000, old.LastIV()+1+uint64(i))
		if _, err := tx.Seal(now, 4, b, 20); err != nil || tx.LastIV() != want {
			t.Fatalf("at %d ns: IV %d, want %d (%v)", now, tx.LastIV(), want, err)
		}
	}
	_, fresh := pair(t, 0, 1, false)
	_, tx = pair(t, 0, 1, false)
	tx.Follow(fresh) // never used: nothing to follow
	if _, err := tx.Seal(0, 4, b, 20); err != nil || tx.LastIV() != 0 {
		t.Fatalf("IV %d, %v", tx.LastIV(), err)
	}
}

func TestARekeyIsDueAtHalfAnSAsLimits(t *testing.T) {
	b := make([]byte, 64)
	_, tx := pair(t, 0, 1, false)
	tx.SetPacketLimit(1 << 60)
	if tx.limit != PacketLimit || tx.RekeyDue() {
		t.Fatalf("limit %d, due %v", tx.limit, tx.RekeyDue())
	}
	tx.SetPacketLimit(4)
	for i := range 4 {
		if due := tx.RekeyDue(); due != (i >= 2) {
			t.Fatalf("after %d of 4 packets: due %v", i, due)
		}
		if _, err := tx.Seal(1, 4, b, 20); err != nil {
			t.Fatal(err)
		}
	}
	_, tx = pair(t, 0, 1, false)
	if _, err := tx.Seal(1, 4, b, 20); err != nil {
		t.Fatal(err)
	}
	tx.first -= ivSpan / 2
	if !tx.RekeyDue() {
		t.Fatal("not due after half the IV's span")
	}
}

// TestSealFromMakesTheSamePacketAsSeal: SealFrom gives the same packet as Seal, for each crypt offset, and does not change
// its payload.
func TestSealFromMakesTheSamePacketAsSeal(t *testing.T) {
	for offset := range uint8(MaxCryptOffset + 1) {
		_, tx := pair(t, 0, 0, true)
		_, other := pair(t, 0, 0, true)
		tx.SetCryptOffset(offset)
		other.SetCryptOffset(offset)
		payload := bytes.Repeat([]byte{1, 2, 3}, 100)
		a, b := make([]byte, tx.Overhead()+len(payload)), make([]byte, tx.Overhead()+len(payload))
		copy(a[tx.HeaderLen():], payload)
		n, err := tx.Seal(5, NextHeaderIPv4, a, len(payload))
		m, err2 := other.SealFrom(5, NextHeaderIPv4, b, payload)
		if err != nil || err2 != nil || n != len(a) || m != n || !bytes.Equal(a, b) {
			t.Errorf("offset %d: %d bytes, %v, and %d, %v", offset, n, err, m, err2)
		}
		if h, _, err := ParseHeader(b); err != nil || h.CryptOffset != offset {
			t.Errorf("the header says %d, %v, want %d", h.CryptOffset, err, offset)
		}
		if payload[0] != 1 || payload[299] != 3 {
			t.Error("the payload changed")
		}
		if _, err := other.SealFrom(5, NextHeaderIPv4, b[:len(b)-1], payload); !errors.Is(err, ErrBuffer) {
			t.Errorf("into too little room: %v", err)
		}
	}
}

package psp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"testing"
)

// vector is one frame of testdata/psp.json.
type vector struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	IP      int    `json:"ip"`
	Version uint8  `json:"version"`
	SPI     string `json:"spi"`
	Offset  uint8  `json:"crypt_off_words"`
	VC      bool   `json:"vc"`
	Key     string `json:"key"`
	Frame   string `json:"frame_hex"`
	Clear   string `json:"clear_hex"`
}

func loadJSON[T any](t testing.TB, name string) (v T) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// parts cuts a vector into the PSP packet on the wire and the clear text it carries.
func (v *vector) parts(t testing.TB) (packet, clear []byte) {
	ipLen := map[int]int{4: 20, 6: 40}[v.IP]
	frame, plain := unhex(t, v.Frame), unhex(t, v.Clear)
	packet = frame[14+ipLen+8:]
	if v.Mode == "tunnel" {
		return packet, plain[14:]
	}
	return packet, plain[14+ipLen:]
}

func (v *vector) spi(t testing.TB) uint32 { return binary.BigEndian.Uint32(unhex(t, v.SPI)) }

// sadbWith returns a database that knows exactly one SPI, as if it had issued it.
func sadbWith(t testing.TB, version uint8, spi uint32) *RxSADB {
	t.Helper()
	return sadbOf(t, testMaster(t), version, spi)
}

func sadbOf(t testing.TB, m Master, version uint8, spi uint32) *RxSADB {
	t.Helper()
	d := NewRxSADB(m, 8, 1)
	d.phase, d.next[spi>>31] = spi>>31, spi&^PhaseBit
	got, _, err := d.Issue(version, ClassFalcon)
	if err != nil || got != spi {
		t.Fatalf("issued %08x, %v", got, err)
	}
	return d
}

func TestCase107_VectorsOpen(t *testing.T) {
	for _, v := range loadJSON[[]vector](t, "psp.json") {
		t.Run(v.Name, func(t *testing.T) {
			packet, want := v.parts(t)
			hdr, off, clear, err := sadbWith(t, v.Version, v.spi(t)).Opener(0).Open(packet)
			if err != nil {
				t.Fatal(err)
			}
			if hdr.Version != v.Version || hdr.SPI != v.spi(t) || hdr.IV != 1 || hdr.CryptOffset != v.Offset || hdr.HasVC != v.VC || hdr.VC != 0 || off != hdr.Len() {
				t.Errorf("header %+v", hdr)
			}
			if !bytes.Equal(clear, want) {
				t.Error("clear text differs")
			}
		})
	}
}

func TestCase107_VectorsSeal(t *testing.T) {
	for _, v := range loadJSON[[]vector](t, "psp.json") {
		t.Run(v.Name, func(t *testing.T) {
			want, clear := v.parts(t)
			m := testMaster(t)
			key := DeriveKey(&m.Keys[v.spi(t)>>31], v.Version, v.spi(t))
			if !bytes.Equal(key, unhex(t, v.Key)) {
				t.Fatalf("key %x", key)
			}
			tx, err := newTxSA(Header{Version: v.Version, SPI: v.spi(t), CryptOffset: v.Offset, HasVC: v.VC}, key)
			if err != nil {
				t.Fatal(err)
			}
			tx.started = true // with a clock of 0 the IV is the last one plus one: 1
			b := make([]byte, tx.Overhead()+len(clear))
			copy(b[tx.HeaderLen():], clear)
			n, err := tx.Seal(0, want[0], b, len(clear))
			if err != nil || n != len(b) {
				t.Fatal(n, err)
			}
			if !bytes.Equal(b, want) {
				t.Errorf("sealed\n%x\nwant\n%x", b, want)
			}
		})
	}
}

func TestCase111_VectorsFlipEveryByte(t *testing.T) {
	for _, v := range loadJSON[[]vector](t, "psp.json") {
		t.Run(v.Name, func(t *testing.T) {
			packet, _ := v.parts(t)
			d := sadbWith(t, v.Version, v.spi(t))
			b := make([]byte, len(packet))
			for i := range packet {
				copy(b, packet)
				b[i] ^= 1 << (i % 8)
				if _, _, _, err := d.Opener(0).Open(b); err == nil {
					t.Fatalf("byte %d flipped and still accepted", i)
				}
			}
			for n := range packet {
				copy(b, packet)
				if _, _, _, err := d.Opener(0).Open(b[:n]); err == nil {
					t.Fatalf("accepted a prefix of %d bytes", n)
				}
			}
		})
	}
}

// The tool's error mode sets the top bit of byte 2 after sealing; it is reserved, but
// authenticated.
func TestReservedBitIsAuthenticated(t *testing.T) {
	v := loadJSON[[]vector](t, "psp.json")[0]
	packet, _ := v.parts(t)
	packet[2] |= 0x80
	if _, _, _, err := sadbWith(t, v.Version, v.spi(t)).Opener(0).Open(packet); !errors.Is(err, ErrAuth) {
		t.Fatal(err)
	}
}

// Falcon in tunnel mode: outer IPv4 | UDP | PSP | inner IPv4 (protocol 252) | Falcon. The CID, the
// first Falcon word, is readable before opening.
func TestCase111_FalconTunnelVectors(t *testing.T) {
	vectors := loadJSON[[]struct{ Name, Hex string }](t, "falcon.json")
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			outer := unhex(t, v.Hex)
			packet := bytes.Clone(outer[28:])
			const cidAt = BaseLen + 20
			if got := binary.BigEndian.Uint32(packet[cidAt:]); got != 0x1000abcd {
				t.Fatalf("clear word %08x", got)
			}
			hdr, _, clear, err := sadbWith(t, VersionGCM128, 0x9a345678).Opener(0).Open(packet)
			if err != nil {
				t.Fatal(err)
			}
			if hdr.NextHeader != NextHeaderIPv4 || hdr.CryptOffset != 6 || hdr.IV != 0x12345678 {
				t.Errorf("header %+v", hdr)
			}
			push := unhex(t, "1000abcd0001024b112233445566778899aabbccddeeff01")
			if clear[9] != NextHeaderFalcon || !bytes.Equal(clear[20:44], push) {
				t.Errorf("inner packet %x", clear)
			}
			m := testMaster(t)
			tx, err := NewTransportTxSA(VersionGCM128, 0x9a345678, DeriveKey(&m.Keys[1], 0, 0x9a345678), 6)
			if err != nil {
				t.Fatal(err)
			}
			tx.started, tx.last = true, 0x12345677
			b := make([]byte, tx.Overhead()+len(clear))
			copy(b[tx.HeaderLen():], clear)
			if _, err := tx.Seal(0, NextHeaderIPv4, b, len(clear)); err != nil || !bytes.Equal(b, outer[28:]) {
				t.Errorf("sealed %x (%v)", b, err)
			}
		})
	}
}

// A packet published with scapy's PSP layer: its key is given, not derived.
func TestScapysPacketIsSealedToTheSameBytes(t *testing.T) {
	want := unhex(t, "04010501112233440102030405060708450000250001000040117cc57f0000017f0000018e3e2b1345c76bf95cdac39b861762a0cfdffbbebbc6313a2b9de064759cdd71c9")
	tx, err := NewTransportTxSA(VersionGCM128, 0x11223344, unhex(t, "ffeeddccbbaa99887766554433221100"), 5)
	if err != nil {
		t.Fatal(err)
	}
	tx.started, tx.last = true, 0x0102030405060707
	clear := unhex(t, "450000250001000040117cc57f0000017f00000104d2162e0011")
	// The UDP checksum is not published: recover it from the cipher text, then the rest must match.
	probe := append(make([]byte, BaseLen), clear...)
	probe = append(probe, make([]byte, 11+ICVLen)...)
	copy(probe[BaseLen+28:], "AAAAAAAAA")
	if _, err := tx.Seal(0, NextHeaderIPv4, probe, 37); err != nil {
		t.Fatal(err)
	}
	sum := [2]byte{probe[BaseLen+26] ^ want[BaseLen+26], probe[BaseLen+27] ^ want[BaseLen+27]}
	b := make([]byte, len(want))
	copy(b[BaseLen:], clear)
	copy(b[BaseLen+26:], sum[:])
	copy(b[BaseLen+28:], "AAAAAAAAA")
	tx.last = 0x0102030405060707
	if _, err := tx.Seal(0, NextHeaderIPv4, b, 37); err != nil || !bytes.Equal(b, want) {
		t.Fatalf("sealed\n%x\nwant\n%x (%v)", b, want, err)
	}
}

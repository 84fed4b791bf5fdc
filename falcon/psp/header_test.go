package psp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawHeader(t *rapid.T) Header {
	h := Header{
		NextHeader:  rapid.Uint8().Draw(t, "next"),
		Version:     rapid.Uint8Range(0, 3).Draw(t, "version"),
		CryptOffset: rapid.Uint8Range(0, 63).Draw(t, "offset"),
		Sample:      rapid.Bool().Draw(t, "S"),
		Drop:        rapid.Bool().Draw(t, "D"),
		HasVC:       rapid.Bool().Draw(t, "V"),
		SPI:         rapid.Uint32().Draw(t, "spi"),
		IV:          rapid.Uint64().Draw(t, "iv"),
	}
	if h.HasVC {
		h.VC = rapid.Uint64().Draw(t, "vc")
	}
	return h
}

func TestHeaderRoundTripAndTruncation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		b := h.Append([]byte("prefix"))[6:]
		got, n, err := ParseHeader(append(b, 0xee))
		if err != nil || n != len(b) || n != h.Len() {
			t.Fatalf("%v, %d bytes of %d", err, n, len(b))
		}
		if d := cmp.Diff(h, got); d != "" {
			t.Fatal(d)
		}
		for i := range b {
			if _, _, err := ParseHeader(b[:i]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("prefix of %d bytes: %v", i, err)
			}
		}
	})
}

func TestAHeaderHasTheBytesOfTheSpecification(t *testing.T) {
	for _, tc := range []struct {
		hex string
		h   Header
	}{
		{"110101019a3456780000000000000001", Header{NextHeader: 17, CryptOffset: 1, SPI: 0x9a345678, IV: 1}},
		{"290200071a34567800000000000000010eefc7cf56b961d2", Header{NextHeader: 41, Version: 1, HasVC: true, SPI: 0x1a345678, IV: 1, VC: 0x0eefc7cf56b961d2}},
		{"040106cd00000001ffffffffffffffff", Header{NextHeader: 4, Version: 3, CryptOffset: 6, Sample: true, Drop: true, SPI: 1, IV: 1<<64 - 1}},
	} {
		if got := tc.h.Append(nil); !bytes.Equal(got, unhex(t, tc.hex)) {
			t.Errorf("%x, want %s", got, tc.hex)
		}
	}
}

func TestAMalformedHeaderIsRefused(t *testing.T) {
	good := unhex(t, "110101019a34567800000000000000010000000000000000")
	for name, edit := range map[string]func(b []byte){
		"always-one bit":      func(b []byte) { b[3] &^= 1 },
		"version 4":           func(b []byte) { b[3] = 4<<2 | 1 },
		"version 15":          func(b []byte) { b[3] = 15<<2 | 1 },
		"length 0":            func(b []byte) { b[1] = 0 },
		"length 2 without VC": func(b []byte) { b[1] = 2 },
		"length 1 with VC":    func(b []byte) { b[3] |= 2 },
		"length 255":          func(b []byte) { b[1] = 255 },
	} {
		b := bytes.Clone(good)
		edit(b)
		if _, _, err := ParseHeader(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

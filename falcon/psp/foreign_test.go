package psp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// frameOf reads the one frame of a capture (pcap, little-endian).
func frameOf(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/foreign", file))
	if err != nil {
		t.Fatal(err)
	}
	if binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s: no pcap file", file)
	}
	n := int(binary.LittleEndian.Uint32(b[24+8:]))
	if len(b) != 24+16+n {
		t.Fatalf("%s: %d bytes of a frame of %d", file, len(b), n)
	}
	return b[24+16:]
}

// behindIP is what follows the IP header of a frame, which has no options.
func behindIP(frame []byte) []byte {
	if binary.BigEndian.Uint16(frame[12:]) == 0x86dd {
		return frame[14+40:]
	}
	return frame[14+20:]
}

// rustKeys are the master keys of the captures named rust_….
var rustKeys = map[string][2]string{
	"others":  {"99a9bb0f6691050a95c71a9b28a9d8cd5d5f9b0801a4b5df1a08b9f751f7c3a4", "5c415099046904d91736c8e24eaeff8625cf4368077075086e090f3c2f8c369d"},
	"7857ffe": {"45dfab1f4f785cf1c44baf7380b602e6f85c0c69f47845ca44f4453c8ae4a504", "6ae25ef7d7e8d0a444e48770adf932ff1b752d30d68601e1fdec50e6c9df2787"},
}

// TestPacketsOfOtherImplementationsOpenAndSealAlike: packets sealed by other implementations of PSP open here to their original
// clear text, and seal to the same bytes, in all modes and versions, with every crypt offset, with
// and without payload. Packets that break the specification are refused, for that reason.
func TestPacketsOfOtherImplementationsOpenAndSealAlike(t *testing.T) {
	refused := map[string]error{
		"v4_encrypt_transport_crypt_off_128": ErrAuth, // a bit of the ICV was changed, to be found
		"v6_encrypt_tunnel_crypt_off_256":    ErrAuth,
		// The V bit is set, and the length says that there is no cookie.
		"v4_encrypt_transport_crypt_off_128_vc":    errExtLen,
		"v4_encrypt_transport_no_crypt_off_128_vc": errExtLen,
		"v6_encrypt_tunnel_crypt_off_256_vc":       errExtLen,
		"v6_encrypt_tunnel_no_crypt_off_256_vc":    errExtLen,
		// From an implementation that was still in development.
		"rust_10fc9a7": errAlwaysOne,
		"rust_cdba642": errAlwaysOne,
		"rust_5376c79": ErrAuth, // the payload is in clear text
		"rust_f5cff1d": ErrAuth, // the ICV fits no header like this one
	}
	files, err := filepath.Glob("testdata/foreign/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	opened := 0
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		if strings.Contains(name, "cleartext") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			m, from := testMaster(t), name[:2]+"_cleartext.pcap"
			if strings.HasSuffix(name, "_empty") {
				from = name[:2] + "_cleartext_empty.pcap"
			}
			if commit, ok := strings.CutPrefix(name, "rust_"); ok {
				keys, own := rustKeys[commit]
				if !own {
					keys = rustKeys["others"]
				}
				copy(m.Keys[0][:], unhex(t, keys[0]))
				copy(m.Keys[1][:], unhex(t, keys[1]))
				from = "v4_cleartext.pcap"
			}
			packet := behindIP(frameOf(t, name+".pcap"))[8:]
			frame := frameOf(t, from)
			want := behindIP(frame)
			if packet[0] == NextHeaderIPv4 || packet[0] == NextHeaderIPv6 {
				want = frame[14:]
			}
			version, spi := packet[3]>>2&0xf, binary.BigEndian.Uint32(packet[4:])
			h, _, clear, err := sadbOf(t, m, version, spi).Opener(0).Open(bytes.Clone(packet))
			if why := refused[name]; why != nil {
				if !errors.Is(err, why) {
					t.Errorf("%v, want %v", err, why)
				}
				return
			}
			if err != nil || !bytes.Equal(clear, want) {
				t.Fatalf("opened: %v; clear text as theirs: %t", err, bytes.Equal(clear, want))
			}
			opened++
			tx, err := newTxSA(Header{Version: h.Version, SPI: h.SPI, CryptOffset: h.CryptOffset, HasVC: h.HasVC, VC: h.VC}, DeriveKey(&m.Keys[spi>>31], version, spi))
			if err != nil {
				t.Fatal(err)
			}
			tx.started, tx.last = true, h.IV-1
			b := make([]byte, tx.Overhead()+len(want))
			copy(b[tx.HeaderLen():], want)
			if _, err := tx.Seal(0, h.NextHeader, b, len(want)); err != nil || !bytes.Equal(b, packet) {
				t.Errorf("sealed to other bytes, %v", err)
			}
		})
	}
	if opened != 17 {
		t.Errorf("%d captures opened, want 17", opened)
	}
}

package capture

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// TestDissectorDecrypts: sealed packets whose keys are in the key log are shown like clear packets,
// with and without an encrypted cookie. Packets with another key, or modified packets, are not
// decrypted.
func TestDissectorDecrypts(t *testing.T) {
	requireTool(t, "tshark")
	var clear []shown
	for _, p := range everyPacket(t) {
		if p.iface == Clear && len(clear) < 12 {
			clear = append(clear, p)
		}
	}
	var log bytes.Buffer
	fmt.Fprintf(&log, "rx 80000001 0 %032x peer=3 tenant=7 class=falcon\n", 1) // of another receiver
	var sealed []shown
	seal := func(p shown, version uint8, offset uint8) []byte {
		key := bytes.Repeat([]byte{version + 5}, psp.KeyLen(version))
		spi := 0x80000001 + uint32(version)
		fmt.Fprintf(&log, "tx %08x %d %x peer=2 tenant=100 class=falcon\n", spi, version, key)
		sa, err := psp.NewTxSA(version, spi, key, 100<<32|7, offset)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, sa.Overhead()+len(p.packet))
		copy(b[sa.HeaderLen():], p.packet)
		n, err := sa.Seal(1e9, psp.NextHeaderIPv4, b, len(p.packet))
		if err != nil {
			t.Fatal(err)
		}
		return b[:n]
	}
	add := func(body []byte, fields map[string]string) {
		sealed = append(sealed, shown{Sealed, build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(underlay.SealedPort), gopacket.Payload(body)), fields})
	}
	for _, version := range []uint8{psp.VersionGCM128, psp.VersionGCM256} {
		for _, offset := range []uint8{0, 2, 8} {
			for _, p := range clear {
				f := maps.Clone(p.fields)
				f["psp.tenant"], f["psp.tunnel"] = "100", "7"
				add(seal(p, version, offset), f)
			}
		}
	}
	changed := seal(clear[0], psp.VersionGCM128, 2)
	changed[len(changed)-20] ^= 1
	add(changed, map[string]string{"psp.tenant": "100", "psp.tunnel": "7"})
	unknown := seal(clear[0], psp.VersionGCM128, 2)
	unknown[7]++
	add(unknown, map[string]string{"psp.tenant": "100", "psp.tunnel": "7"})

	dir := t.TempDir()
	file, script := filepath.Join(dir, "keys"), filepath.Join(dir, "both.lua")
	if err := os.WriteFile(file, log.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var both []byte
	for _, part := range []string{"testdata/gcrypt.lua", dissector} {
		b, err := os.ReadFile(part)
		if err != nil {
			t.Fatal(err)
		}
		both = append(append(both, "do\n"...), append(b, "\nend\n"...)...)
	}
	both = fmt.Appendf(both, "set_preference(\"psp.keylog\", %q) apply_preferences()\n", file)
	if err := os.WriteFile(script, both, 0o600); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{luaError: true, "psp.tenant": true, "psp.tunnel": true}
	for _, p := range clear {
		for f := range p.fields {
			names[f] = true
		}
	}
	got := tshark(t, script, sealed, slices.Sorted(maps.Keys(names)))
	for i, g := range got {
		if i >= len(got)-2 { // what stays sealed
			if g["rdma.opcode"] != "" || g["falcon.type"] != "" || g["psp.tenant"] != "100" {
				t.Errorf("%d: shown though it is not authentic: %v", i, g)
			}
			continue
		}
		if diff := cmp.Diff(sealed[i].fields, g); diff != "" {
			t.Errorf("%d (-want +got):\n%s", i, diff)
		}
	}
}

package shard

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestVersions runs each PSP version end to end, a different one in each direction: a NIC's version
// is that of the keys it issues.
func TestVersions(t *testing.T) {
	for version := range uint8(4) {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { c.PSP.Version = (version + uint8(i)) % 4 })
			a, b := pair(v)
			text := bytes.Repeat([]byte("in the clear? "), 100)
			var seen [2]bool // by sender: the text was readable
			v.tap = func(from int, f []byte) []byte {
				if h, _, err := psp.ParseHeader(f[min(len(f), underlay.Headroom):]); err == nil && h.Version != (version+uint8(1-from))%4 {
					t.Fatalf("sender %d uses version %d", from, h.Version)
				}
				seen[from] = seen[from] || bytes.Contains(f, text)
				return f
			}
			for i, d := range []*driver{a, b} {
				copy(d.data(), text)
				d.send(abi.OpWrite, 0, len(text), []*driver{b, a}[i], 1<<20)
				if cqe := d.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				if want := (version+uint8(1-i))%4 >= psp.VersionGMAC128; seen[i] != want {
					t.Errorf("sender %d: readable on the wire: %v, want %v", i, seen[i], want)
				}
			}
			exchange(t, a, b, 100_000)
			noKeyDrops(t, v)
		})
	}
}

// TestKeyLog checks for a line for each SA of either direction, with the key that works, in a file
// that only its owner can read; without the configuration there is nothing.
func TestKeyLog(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	var logs [2]written
	var keyLogs [2]*security.KeyLog
	for i, core := range v.cores {
		l := security.NewKeyLog(&logs[i], func(err error) { t.Error(err) })
		core.Keys.LogTo(l)
		for _, s := range v.nics[i] {
			s.txSAs.LogTo(l)
		}
		keyLogs[i] = l
	}
	a, b := pair(v)
	exchange(t, a, b, 1000)
	if err := v.cores[0].Keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	v.idle(2e9)
	exchange(t, a, b, 1000)
	for _, l := range keyLogs {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{"rx", "tx", "rx"}, {"rx", "tx", "tx"}} {
		var got []string
		for line := range strings.Lines(logs[i].String()) {
			direction, rest, _ := strings.Cut(line, " ")
			got = append(got, direction)
			if direction == "rx" && !strings.Contains(logs[1-i].String(), "tx "+strings.SplitN(rest, " peer", 2)[0]) {
				t.Errorf("shard %d: the sender does not have %q", i, line)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) && fmt.Sprint(got) != fmt.Sprint([]string{want[1], want[0], want[2]}) {
			t.Errorf("shard %d: %q", i, logs[i].String())
		}
		sa, err := v.cores[i].Keys.Issue(security.Use{Peer: uint8(2 - i), Tenant: 7, Shard: uint8(v.shards[1-i].index)})
		if err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf("rx %08x 0 %s peer=%d tenant=7 class=falcon\n", sa.SPI, hex.EncodeToString(sa.Key), 2-i); !strings.Contains(logs[i].String(), line) {
			t.Errorf("shard %d: no %q in %q", i, line, logs[i].String())
		}
	}
}

// written is a file in memory.
type written struct{ bytes.Buffer }

func (*written) Close() error { return nil }

// TestKeysFollowRandomNumbers checks that other random numbers give other keys for the same SPIs,
// so that no IV repeats under a key at any clock, as long as each start has its own random numbers.
func TestKeysFollowRandomNumbers(t *testing.T) {
	seen := map[string]bool{}
	var spi uint32
	for range 4 {
		cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		core, err := controller.NewCore(controller.CoreConfig{NIC: cfg, Shards: 1, Rand: rand.Reader})
		if err != nil {
			t.Fatal(err)
		}
		sa, err := core.Keys.Issue(security.Use{Peer: 2, Tenant: 7})
		if err != nil || seen[string(sa.Key)] || spi != 0 && sa.SPI != spi {
			t.Fatalf("SPI %#x, key %x seen before: %v (%v)", sa.SPI, sa.Key, seen[string(sa.Key)], err)
		}
		seen[string(sa.Key)], spi = true, sa.SPI
	}
}

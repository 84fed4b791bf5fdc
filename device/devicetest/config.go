package devicetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

const MTU = 4500

// Config describes NIC 1 or 2 of a pair, which are known by their nic.host: VF 1 and VF 2 belong to whoever
// comes over the unix socket, VF 3 to a guest that does not exist. The NICs do
// not probe the path's MTU, so that tests see only packets of their own.
func Config(t testing.TB, nic int, socket string, cm [2]string) *config.Config {
	t.Helper()
	peer := 3 - nic
	return parse(t, nic, socket, cm, nic, "", fmt.Sprintf("host: %[1]d, identity: vnic://test/host/%[1]d", peer))
}

// SameHost is Config with names that are no numbers, and one nic.host for both NICs.
func SameHost(t testing.TB, nic int, socket string, cm [2]string) *config.Config {
	t.Helper()
	names := [2]string{"rack1.a", "rack1.b"}
	return parse(t, nic, socket, cm, 7, ", name: "+names[nic-1], "name: "+names[2-nic])
}

func parse(t testing.TB, nic int, socket string, cm [2]string, host int, name, peer string) *config.Config {
	t.Helper()
	c, err := config.Parse(fmt.Appendf(nil, `
nic: {host: %[7]d}
control: %[5]s.ctl
uplink: {backend: memory, mtu: %[6]d, probe_mtu: off, address: 10.99.0.%[1]d/24}
cm: {listen: %[3]s, identity: unused%[8]s}
peers:
  - {%[9]s, underlay: 10.99.0.%[2]d, cm: %[4]s, tenants: [7]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 7, address: 192.168.100.%[1]d1, guest: {unix: bare}}
      - {vf: 2, tenant: 7, address: 192.168.100.%[1]d2, guest: {unix: bare}}
      - {vf: 3, tenant: 7, address: 192.168.100.%[1]d3, guest: {cid: 33}}
      - {vf: 4, tenant: 8, address: 192.168.100.%[1]d1, guest: {unix: bare}}
attach:
  - {type: unix, name: bare, socket: %[5]s}
  - {type: vhost-user, socket: %[5]s.vhost, cid: 33}
`, nic, 3-nic, cm[nic-1], cm[2-nic], socket, MTU, host, name, peer))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func Addrs(list ...string) (as []netip.Addr) {
	for _, a := range list {
		as = append(as, netip.MustParseAddr(a))
	}
	return as
}

// AddPort gives a VF of the test configuration a port.
func AddPort(c *config.Config, vf int, p *config.Port) {
	c.Functions[0].VFs[vf].Port = p
	c.SetPortDefaults()
}

// Seeded is an io.Reader of reproducible bytes.
func Seeded(seed uint64) *rand.ChaCha8 {
	var k [32]byte
	binary.LittleEndian.PutUint64(k[:], seed)
	return rand.NewChaCha8(k)
}

// FinishHeader completes the checksum of an IPv4 header.
func FinishHeader(ip []byte) {
	ip[10], ip[11] = 0, 0
	s := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		s += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	s = s>>16 + s&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(s>>16+s))
}

// Host1 and Host2 are the tenant addresses of the first VF of either NIC of Config.
var (
	Host1 = [4]byte{192, 168, 100, 11}
	Host2 = [4]byte{192, 168, 100, 21}
)

package config

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// overhead is what an RDMA packet's data is wrapped in below the uplink's MTU:
// outer IP and UDP, the seal, Falcon Push Data 28, the longest ULP headers in
// front of data 40. Packets inside the seal may have IPv6 addresses though all
// functions have IPv4 ones: drivers add their link-local GIDs.
func (c *Config) overhead() int {
	seal := room.Tunnel(true)
	if c.PSP.Mode == PSPTransport {
		seal = room.Transport
	}
	return underlay.HeaderLen(c.Uplink.Address.Addr()) + seal + 28 + wire.MaxDataHeaderLen
}

// SealedOverhead is what a port's IP packet is wrapped in below the uplink's MTU: outer IP and UDP,
// and the seal.
func (c *Config) SealedOverhead() int {
	return underlay.HeaderLen(c.Uplink.Address.Addr()) + room.Plain
}

package config

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// overhead returns the bytes around an RDMA packet's data that count for the uplink's MTU: outer IP
// and UDP, the seal, Falcon Push Data 28, and the longest ULP headers in front of data, 40. Sealed
// packets may have IPv6 addresses even if all functions have IPv4 ones: drivers add their
// link-local GIDs.
func (c *Config) overhead() int {
	seal := room.Tunnel(true)
	if c.PSP.Mode == PSPTransport {
		seal = room.Transport
	}
	return underlay.HeaderLen(c.Uplink.Own()) + seal + 28 + wire.MaxDataHeaderLen
}

// RDMADataFor returns how many bytes of data an RDMA packet may have if the network carries mtu bytes
// of outer IP packet.
func (c *Config) RDMADataFor(mtu int) int { return mtu - c.overhead() }

// SealedOverhead returns the bytes around a port's IP packet that count for the uplink's MTU: outer
// IP and UDP, and the seal.
func (c *Config) SealedOverhead() int {
	return underlay.HeaderLen(c.Uplink.Own()) + room.Plain
}

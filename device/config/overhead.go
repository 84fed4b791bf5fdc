package config

import (
	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// overhead is what an RDMA packet's data is wrapped in below the uplink's MTU:
// outer IP and UDP, the seal, Falcon Push Data 28, the longest ULP headers in
// front of data 40.
func (c *Config) overhead() int {
	v6 := false
	for _, f := range c.AllFunctions() {
		v6 = v6 || f.Address.Is6()
	}
	seal := room.Tunnel(v6)
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

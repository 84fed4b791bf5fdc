package room

import (
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Bytes around the sealed data.
const (
	Cookie    = psp.BaseLen + psp.VCLen     // PSP's header with the cookie
	Head      = Cookie + underlay.InnerLen6 // the longest headers in front of a Falcon packet
	Trailer   = psp.ICVLen                  // behind the packet: the integrity check value
	Plain     = Cookie + Trailer            // what the gateway class adds to a packet
	Transport = psp.BaseLen + Trailer       // what transport mode adds to a Falcon packet
)

// Tunnel returns what tunnel mode adds to a Falcon packet between functions with IPv4 or IPv6
// addresses.
func Tunnel(v6 bool) int { return Cookie + Inner(v6) + Trailer }

// Inner returns the length of the inner IP header.
func Inner(v6 bool) int {
	if v6 {
		return underlay.InnerLen6
	}
	return underlay.InnerLen
}

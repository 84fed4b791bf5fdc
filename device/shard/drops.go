package shard

import "github.com/falcon-vnic/vnic/device/security"

// dropReason says why a packet ended at this NIC instead of at a function.
// Nothing is ever dropped without one of them being counted.
type dropReason uint8

const (
	dropPSPMalformed   dropReason = iota // not a PSP packet of tunnel mode version 0–3
	dropPSPSPI                           // SPI never issued, or forgotten
	dropPSPAuth                          // integrity check failed
	dropNoGateway                        // of the gateway class, and no function of this NIC has a port
	dropNotFalcon                        // opened, but not Falcon in IPv4 or IPv6 in tunnel mode
	dropUnknownCID                       // no connection has this CID
	dropWrongAddress                     // inner addresses are not those of the connection's functions
	dropReplay                           // older than the replay margin allows, or a counter seen before
	dropConnectionSPI                    // an SPI, but not of this connection
	dropConnectionPCID                   // another tenant's
	dropFalcon                           // refused by the transport, which counts why
	dropTxClosed                         // to send, but the connection just went
	dropTxSeal                           // to send, but sealing failed
	dropAsyncEvent                       // connections refused: the guest took no events
	dropLinkDown                         // to or from a function whose link is down
	dropPanic                            // found a fault in the code that reads it
	dropHandover                         // for another shard, which has not taken what it got before
	dropReasons
)

var dropNames = [dropReasons]string{
	"psp_malformed", "psp_spi", "psp_auth", "no_gateway", "not_falcon", "unknown_cid", "wrong_address",
	"replay", "connection_spi", "connection_pcid", "falcon", "tx_closed", "tx_seal", "async_event", "link_down", "panic", "handover",
}

func (r dropReason) String() string { return dropNames[r] }

// dropCounts counts by reason. The shard owns it.
type dropCounts [dropReasons]uint64

func (c *dropCounts) count(r dropReason) { c[r]++ }

// taken counts a packet that security refuses.
func (c *dropCounts) taken(why security.Refusal) bool {
	if why != security.None {
		c.count(refusalDrops[why])
	}
	return why == security.None
}

// refusalDrops are the reasons of security as counted.
var refusalDrops = [security.Refusals]dropReason{
	security.Malformed: dropPSPMalformed, security.UnknownSPI: dropPSPSPI, security.BadSeal: dropPSPAuth, security.Replayed: dropReplay,
	security.OtherMode: dropNotFalcon, security.NotFalcon: dropNotFalcon,
	security.WrongSPI: dropConnectionSPI, security.WrongCookie: dropConnectionPCID,
}

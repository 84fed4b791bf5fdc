package shard

import "github.com/falcon-vnic/vnic/device/security"

// dropReason says why a packet was dropped at this NIC. Every drop is counted under one of the
// reasons.
type dropReason uint8

const (
	dropPSPMalformed   dropReason = iota // not a PSP packet of version 0–3 that this NIC accepts
	dropPSPSPI                           // SPI never issued, or forgotten
	dropPSPAuth                          // integrity check failed
	dropNoGateway                        // gateway class, but no function of this NIC has a port
	dropNotFalcon                        // opened, but not Falcon in the psp.mode of this NIC
	dropUnknownCID                       // no connection has this CID
	dropWrongAddress                     // inner addresses are not those of the connection's functions
	dropReplay                           // older than the replay margin allows, or a counter seen before
	dropConnectionSPI                    // a known SPI, but not this connection's
	dropConnectionPCID                   // cookie of another tenant
	dropFalcon                           // refused by the transport, which counts the reason
	dropTxClosed                         // to be sent, but the connection was just closed
	dropTxSeal                           // to be sent, but sealing failed
	dropLinkDown                         // to or from a function whose link is down
	dropPanic                            // made the code that parses it panic
	dropHandover                         // for another shard whose ring is full
	dropProbe                            // a probe of the path that is malformed, or beyond those that a peer may send
	dropReasons
)

var dropNames = [dropReasons]string{
	"psp_malformed", "psp_spi", "psp_auth", "no_gateway", "not_falcon", "unknown_cid", "wrong_address",
	"replay", "connection_spi", "connection_pcid", "falcon", "tx_closed", "tx_seal", "link_down", "panic", "handover", "probe",
}

func (r dropReason) String() string { return dropNames[r] }

// dropCounts counts drops by reason. The shard owns it.
type dropCounts [dropReasons]uint64

func (c *dropCounts) count(r dropReason) { c[r]++ }

// countRefusal counts a packet that security refused.
func (c *dropCounts) countRefusal(why security.Refusal) { c.count(refusalDrops[why]) }

// refusalDrops maps security's refusals to drop reasons.
var refusalDrops = [security.Refusals]dropReason{
	security.Malformed: dropPSPMalformed, security.UnknownSPI: dropPSPSPI, security.BadSeal: dropPSPAuth, security.Replayed: dropReplay,
	security.OtherMode: dropNotFalcon, security.NotFalcon: dropNotFalcon,
	security.WrongSPI: dropConnectionSPI, security.WrongCookie: dropConnectionPCID,
}

// shardCounts counts what is no drop. The shard owns it.
type shardCounts struct {
	rxPackets, rxBytes uint64 // Falcon packets accepted
	txPackets, txBytes uint64 // Falcon packets sealed
	steps              uint64

	localPackets, localBytes uint64 // Falcon packets given to other shards
	steered                  uint64 // frames of the uplink given to other shards

	refusedBehindDriver uint64 // connections refused because their driver did not take its events
}

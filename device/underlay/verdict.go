package underlay

import "fmt"

// Verdict is the result for a frame: a received one (Input) or one to be sent (Output).
type Verdict uint8

// Verdicts. Deliver, ARP, ND and Claim are the successful results of Input, Sent and Parked those
// of Output; the others are drops.
const (
	Deliver Verdict = iota // a PSP datagram for the caller
	ARP                    // handled by the stack
	ND                     // neighbour discovery, handled by the stack
	Claim                  // ARP or neighbour discovery of a station that claims another station's address
	Sent                   // completed for the caller to write
	Parked                 // waits for its neighbour's address

	DropRunt        // shorter than an Ethernet header
	DropMAC         // not to our Ethernet address
	DropSourceMAC   // from a group address, or from our own
	DropEtherType   // neither of our IP version nor ARP
	DropARP         // malformed, or from an impossible sender
	DropND          // neighbour discovery that RFC 4861 §7.1 refuses
	DropConflict    // another station uses our IP address
	DropIPHeader    // not an IP header, bad length, bad checksum
	DropFragment    // PSP is never fragmented
	DropTTL         // arrived with TTL 0
	DropDestination // to another IP address
	DropSource      // from an impossible IP address
	DropProtocol    // not UDP
	DropUDPLength   // UDP length differs from the bytes received (Falcon §9.2.2.1)
	DropPort        // not to PSP's port

	DropRoute      // Output: no gateway, or not a valid destination
	DropTooLong    // Output: above the MTU
	DropBuffer     // Output: the frame has no room for the payload
	DropNeighbours // Output: neighbour table full
	DropParkFull   // Output: too many frames wait already
	DropUnresolved // a parked frame whose neighbour did not answer
	DropQueueFull  // an ARP or neighbour discovery packet for which the queue is full

	NumVerdicts
)

var verdictNames = [NumVerdicts]string{
	"deliver", "arp", "nd", "claim", "sent", "parked",
	"drop-runt", "drop-mac", "drop-source-mac", "drop-ethertype", "drop-arp", "drop-nd", "drop-address-conflict", "drop-ip-header", "drop-fragment",
	"drop-ttl", "drop-destination", "drop-source", "drop-protocol", "drop-udp-length", "drop-port",
	"drop-no-route", "drop-too-long", "drop-buffer", "drop-neighbours-full", "drop-park-full", "drop-unresolved", "drop-queue-full",
}

func (v Verdict) String() string {
	if v < NumVerdicts {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Stats counts verdicts; index it with a Verdict.
type Stats [NumVerdicts]uint64

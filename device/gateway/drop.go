package gateway

// Reason says why a frame or packet ended at the gateway, or what the gateway did with it itself.
// Nothing is dropped without one being counted.
type Reason uint8

// Reasons.
const (
	none Reason = iota

	DropTruncated   // shorter than its headers say
	DropEtherType   // neither ARP, IPv4 nor IPv6; VLAN tags too
	DropSourceMAC   // not the function's
	DropOtherMAC    // to a station that is not the gateway
	DropHeader      // IP version, header length or header checksum is wrong
	DropOffload     // the virtio-net header does not fit the frame
	DropSourceIP    // not an address of the function
	DropFalcon      // protocol 252: only the NIC speaks Falcon
	DropRoCE        // RoCEv2 in the name of the function, whose driver speaks it
	DropMulticast   // broadcast or multicast, which is not carried
	DropLinkLocal   // stays on the link
	DropDestination // an address no packet can have as its destination
	DropNoRoute     // nobody has the destination address
	DropHairpin     // to the port it came from
	DropTTL         // to be routed, and none left
	DropTooBig      // does not fit; the sender was told
	DropNoKey       // the peer has not given us a key yet
	DropECN         // congestion experienced on the way, and the sender cannot be told (RFC 6040)
	DropARP         // malformed, or not to be answered
	DropND          // malformed, or what routers say
	DropDHCP        // malformed, or for another client
	DropICMPLimit   // an error message less, by rate
	DropReplyFull   // a reply less: the port takes none
	DropWrongVC     // cookie of another tenant than the key's
	DropWrongSource // not an address of the peer it came from
	DropNoPort      // no function of this NIC with a port has the destination
	DropPortDown    // the port is
	DropPortFull    // the port's device does not take it
	DropPortTooBig  // longer than the port's MTU
	DropShardFull   // the shard that has the port does not take it
	DropGroupFull   // too many packets to groups wait, of the same sender
	DropPanic       // found a fault in this code

	CountARP        // requests answered
	CountND         // solicitations answered
	CountAsked      // asked who behind a port has an address
	CountDHCP       // leases told
	CountICMP       // error messages sent
	CountEcho       // echo requests to a router answered
	CountFragments  // fragments carried, as they came
	CountFragmented // packets that left in fragments
	CountNested     // packets carried that hold another tunnel's
	Reasons
)

var reasonNames = [Reasons]string{
	"none", "drop_truncated", "drop_ethertype", "drop_source_mac", "drop_other_mac", "drop_header", "drop_offload", "drop_source_ip", "drop_falcon", "drop_roce",
	"drop_multicast", "drop_link_local", "drop_destination", "drop_no_route", "drop_hairpin", "drop_ttl", "drop_too_big", "drop_no_key", "drop_ecn",
	"drop_arp", "drop_nd", "drop_dhcp", "drop_icmp_limit", "drop_reply_full", "drop_wrong_vc", "drop_wrong_source", "drop_no_port", "drop_port_down",
	"drop_port_full", "drop_port_too_big", "drop_shard_full", "drop_group_full", "drop_panic", "arp_answered", "nd_answered", "asked", "dhcp_answered", "icmp_sent", "echo_answered", "fragments", "fragmented", "nested",
}

func (r Reason) String() string { return reasonNames[r] }

// Stats counts by reason, and what went well.
type Stats struct {
	Reasons [Reasons]uint64

	FromPorts, ToPorts         uint64 // frames
	FromPortBytes, ToPortBytes uint64
	Segments                   uint64 // packets cut from frames that stood for several
	Coalesced                  uint64 // packets that joined one before
	Local                      uint64 // frames from port to port
	HandedOver                 uint64 // frames for ports of other shards
	TunnelPackets, TunnelBytes uint64 // sealed
	TunnelIn, TunnelInBytes    uint64 // opened
}

// drop counts, at the port too.
func (s *Stats) drop(p *Endpoint, why Reason) {
	s.Reasons[why]++
	if p != nil {
		p.Drops[why]++
	}
}

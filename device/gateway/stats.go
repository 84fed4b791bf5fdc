package gateway

// Reason says why the gateway dropped a frame or packet, or what it did with one itself. Every drop
// is counted under a Reason.
type Reason uint8

// Reasons.
const (
	none Reason = iota

	DropTruncated   // shorter than its headers say
	DropEtherType   // neither ARP, IPv4 nor IPv6; VLAN tags too
	DropSourceMAC   // not the function's
	DropOtherMAC    // not to the gateway
	DropHeader      // IP version, header length or header checksum is wrong
	DropOffload     // the virtio-net header does not fit the frame
	DropSourceIP    // not an address of the function
	DropFalcon      // protocol 252: only the NIC speaks Falcon
	DropForged      // of the function's claim, from its address, but sent by the guest (Endpoint.forged)
	DropForgedPort  // the same, from a port where the function itself has an end of a connection
	DropMulticast   // broadcast or multicast, which is not carried
	DropLinkLocal   // link-local, not forwarded
	DropDestination // not a valid destination address
	DropNoRoute     // nobody has the destination address
	DropHairpin     // to the port it came from
	DropTTL         // to be routed, and its TTL or hop limit is used up
	DropTooBig      // longer than the path's MTU
	DropNoKey       // the peer has not given us a key yet
	DropECN         // congestion experienced on the path, but the inner header is not ECN-capable (RFC 6040)
	DropARP         // malformed, or needs no answer
	DropND          // malformed, or a message that only routers may send
	DropDHCP        // malformed, or for another client
	DropICMPLimit   // ICMP error or echo reply suppressed by the rate limit
	DropReplyFull   // reply suppressed: too many wait
	DropWrongVC     // cookie of a tenant that is not the key's
	DropWrongSource // not an address of the peer it came from
	DropNoPort      // no function of this NIC with a port has the destination
	DropPortDown    // the port is down
	DropPortFull    // the port's device or the output is full
	DropPortTooBig  // longer than the port's MTU
	DropShardFull   // the shard that has the port does not take it
	DropGroupFull   // too many packets to groups from one sender wait
	DropPanic       // the frame made this code panic

	CountARP        // ARP requests answered
	CountND         // solicitations answered
	CountAsked      // requests sent to find which host behind a port has an address
	CountDHCP       // DHCP answers sent
	CountICMP       // error messages sent
	CountEcho       // echo requests to a router answered
	CountFragments  // fragments carried unchanged
	CountFragmented // packets sent as fragments
	CountNested     // packets carried that contain another tunnel's packet
	Reasons
)

var reasonNames = [Reasons]string{
	"none", "drop_truncated", "drop_ethertype", "drop_source_mac", "drop_other_mac", "drop_header", "drop_offload", "drop_source_ip", "drop_falcon", "drop_roce", "drop_own_port",
	"drop_multicast", "drop_link_local", "drop_destination", "drop_no_route", "drop_hairpin", "drop_ttl", "drop_too_big", "drop_no_key", "drop_ecn",
	"drop_arp", "drop_nd", "drop_dhcp", "drop_icmp_limit", "drop_reply_full", "drop_wrong_vc", "drop_wrong_source", "drop_no_port", "drop_port_down",
	"drop_port_full", "drop_port_too_big", "drop_shard_full", "drop_group_full", "drop_panic", "arp_answered", "nd_answered", "asked", "dhcp_answered", "icmp_sent", "echo_answered", "fragments", "fragmented", "nested",
}

func (r Reason) String() string { return reasonNames[r] }

// Stats counts frames and packets, and drops by reason.
type Stats struct {
	Reasons [Reasons]uint64

	FromPorts, ToPorts         uint64 // frames
	FromPortBytes, ToPortBytes uint64
	Segments                   uint64 // packets cut from frames that stood for several
	Coalesced                  uint64 // packets joined to an earlier one
	Local                      uint64 // frames from port to port
	HandedOver                 uint64 // frames for ports of other shards
	TunnelPackets, TunnelBytes uint64 // sealed
	TunnelIn, TunnelInBytes    uint64 // opened
}

// drop counts a drop in s and, unless p is nil, at the port.
func (s *Stats) drop(p *Endpoint, why Reason) {
	s.Reasons[why]++
	if p != nil {
		p.Drops[why]++
	}
}

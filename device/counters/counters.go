package counters

import (
	"maps"
	"strings"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Counter describes a counter or a family of them.
type Counter struct {
	Name  string // as in `vnic show counters`: package and counter
	Help  string
	Gauge bool // its value can also fall
}

// read is a counter and the function that reads it from a T.
type read[T any] struct {
	Counter
	of func(T) uint64
}

type table[T any] []read[T]

// known holds every counter that has a line in a table. It is filled when the program initialises.
var known = map[string]Counter{}

func counter[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help}
	return read[T]{known[name], of}
}

func gauge[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help, Gauge: true}
	return read[T]{known[name], of}
}

// Add reads the counters of one table.
func (t table[T]) Add(to control.Counters, from T) {
	for i := range t {
		to[t[i].Name] = t[i].of(from)
	}
}

// All returns the counters that have a line in a table, by name.
func All() map[string]Counter { return maps.Clone(known) }

// Of returns the description of a counter in `vnic show counters`. A counter without a line in a
// table has no help text.
func Of(name string) Counter {
	if c, ok := known[name]; ok {
		return c
	}
	return Counter{Name: name}
}

// Name converts a description to a counter's name.
func Name(s string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(s))
}

// Shard holds a shard's own counters, besides those of its packages.
type Shard struct {
	Steps              uint64
	RxPackets, RxBytes uint64 // Falcon packets accepted
	TxPackets, TxBytes uint64 // Falcon packets sealed
	Local, LocalBytes  uint64 // Falcon packets handed to other shards
	Steered            uint64 // frames of the uplink handed to other shards
	Doorbells          uint64
	AdminCommands      uint64
	Interrupts         uint64
	BellsMuted         uint64
	TxSAs              uint64
}

// Core holds the counters of the NIC's core, besides those of its packages.
type Core struct{ CIDsInUse, RxSAs, RxSAsUnsettled, Rotations uint64 }

// NIC holds the counters of a NIC outside its shards.
type NIC struct {
	Warnings, CaptureDropped, Starts, Stuck uint64
	GuestBytes, GuestMaps, GuestRefused     uint64 // of guests' memory
}

// OfShard is the table of a shard's counters.
var OfShard = table[*Shard]{
	counter("shard.admin_commands", "Admin commands of drivers.", func(s *Shard) uint64 { return s.AdminCommands }),
	counter("shard.bells_muted", "Guests whose doorbells rang without need and were ignored for a while.", func(s *Shard) uint64 { return s.BellsMuted }),
	counter("shard.doorbells", "Doorbells of drivers.", func(s *Shard) uint64 { return s.Doorbells }),
	counter("shard.inside_bytes", "Bytes between functions of different shards.", func(s *Shard) uint64 { return s.LocalBytes }),
	counter("shard.inside_packets", "Packets between functions of different shards.", func(s *Shard) uint64 { return s.Local }),
	counter("shard.interrupts", "Interrupts raised for guests.", func(s *Shard) uint64 { return s.Interrupts }),
	counter("shard.rx_bytes", "Bytes received from the uplink.", func(s *Shard) uint64 { return s.RxBytes }),
	counter("shard.rx_packets", "Packets received from the uplink.", func(s *Shard) uint64 { return s.RxPackets }),
	counter("shard.steered", "Frames of the uplink that came to another shard than theirs and were handed over.", func(s *Shard) uint64 { return s.Steered }),
	counter("shard.steps", "Times the NIC's thread looked for work.", func(s *Shard) uint64 { return s.Steps }),
	counter("shard.tx_bytes", "Bytes given to the uplink.", func(s *Shard) uint64 { return s.TxBytes }),
	counter("shard.tx_packets", "Packets given to the uplink.", func(s *Shard) uint64 { return s.TxPackets }),
	gauge("psp.tx_sas", "Security associations that this NIC seals with.", func(s *Shard) uint64 { return s.TxSAs }),
}

// OfCore is the table of the counters of the NIC's core.
var OfCore = table[*Core]{
	gauge("shard.cids_in_use", "Connection ids in use.", func(s *Core) uint64 { return s.CIDsInUse }),
	counter("psp.rotations", "Rotations of the master key.", func(s *Core) uint64 { return s.Rotations }),
	gauge("psp.rx_sas", "Security associations that peers seal with.", func(s *Core) uint64 { return s.RxSAs }),
	gauge("psp.rx_sas_unsettled", "Keys given out that the peer does not use yet.", func(s *Core) uint64 { return s.RxSAsUnsettled }),
}

// OfFalcon is the table of the transport's counters. Those that form families are in families.go.
var OfFalcon = table[*falcon.Stats]{
	counter("falcon.acks_received", "Acknowledgements received.", func(s *falcon.Stats) uint64 { return s.AcksReceived }),
	counter("falcon.acks_sent", "Acknowledgements sent.", func(s *falcon.Stats) uint64 { return s.AcksSent }),
	counter("falcon.answer_timeouts", "Packets that the peer has and did not answer in time.", func(s *falcon.Stats) uint64 { return s.AnswerTimeouts }),
	counter("falcon.conns_failed", "Connections given up because the peer does not answer.", func(s *falcon.Stats) uint64 { return s.ConnsClosed[falcon.CloseResync] }),
	counter("falcon.conns_left_by_peer", "Connections that the peer closed.", func(s *falcon.Stats) uint64 { return s.ConnsClosed[falcon.ClosePeer] }),
	counter("falcon.conns_violated", "Connections that ended because the peer broke a rule.", func(s *falcon.Stats) uint64 { return s.ConnsClosed[falcon.CloseULP] }),
	counter("falcon.conns_too_long", "Connections that ended because the network no longer carries packets as long as one in flight.", func(s *falcon.Stats) uint64 { return s.ConnsClosed[falcon.CloseMTU] }),
	counter("falcon.conns_without_keys", "Connections that ended because no key was left to seal with.", func(s *falcon.Stats) uint64 { return s.ConnsClosed[falcon.CloseKeys] }),
	counter("falcon.credit_errors", "Credits returned that were not taken: a defect of this program.", func(s *falcon.Stats) uint64 { return s.CreditErrors }),
	counter("falcon.data_sent", "Data packets sent.", func(s *falcon.Stats) uint64 { return s.DataSent }),
	counter("falcon.early_retransmits", "Packets sent again because acknowledgements show their loss.", func(s *falcon.Stats) uint64 { return s.EarlyRetransmits }),
	counter("falcon.ecn_marked", "Packets received with a mark of congestion.", func(s *falcon.Stats) uint64 { return s.ECNMarked }),
	counter("falcon.evicted", "Waiting requests of peers that gave up their buffer to another connection.", func(s *falcon.Stats) uint64 { return s.Evicted }),
	counter("falcon.extended_acks_received", "Acknowledgements with bitmaps received.", func(s *falcon.Stats) uint64 { return s.ExtendedAcksReceived }),
	counter("falcon.extended_acks_sent", "Acknowledgements with bitmaps sent.", func(s *falcon.Stats) uint64 { return s.ExtendedAcksSent }),
	counter("falcon.fill_errors", "Packets whose data was gone when they were to be sent.", func(s *falcon.Stats) uint64 { return s.FillErrors }),
	counter("falcon.ignored_acks", "Acknowledgements that were stale or impossible.", func(s *falcon.Stats) uint64 { return s.IgnoredAcks }),
	counter("falcon.nacks_received", "NACKs received.", func(s *falcon.Stats) uint64 { return s.NacksReceived }),
	counter("falcon.nacks_sent", "NACKs sent.", func(s *falcon.Stats) uint64 { return s.NacksSent }),
	counter("falcon.own_received", "Notices received that packets came beyond the peer's receive window.", func(s *falcon.Stats) uint64 { return s.OWNReceived }),
	counter("falcon.own_sent", "Notices sent that packets came beyond the receive window.", func(s *falcon.Stats) uint64 { return s.OWNSent }),
	counter("falcon.packets_received", "Packets of the transport received.", func(s *falcon.Stats) uint64 { return s.PacketsReceived }),
	counter("falcon.packets_sent", "Packets of the transport sent.", func(s *falcon.Stats) uint64 { return s.PacketsSent }),
	counter("falcon.probes", "Probes sent because nothing was acknowledged for a while.", func(s *falcon.Stats) uint64 { return s.Probes }),
	counter("falcon.reclaimed", "Waiting requests of peers that were given up.", func(s *falcon.Stats) uint64 { return s.Reclaimed }),
	counter("falcon.red_zone", "Requests of peers refused for lack of room in the red zone.", func(s *falcon.Stats) uint64 { return s.RedZone }),
	counter("falcon.rejected", "Requests that ended because there was no credit.", func(s *falcon.Stats) uint64 { return s.Rejected }),
	counter("falcon.repaths", "Times a connection moved to another path.", func(s *falcon.Stats) uint64 { return s.Repaths }),
	counter("falcon.resyncs_received", "Resync packets received.", func(s *falcon.Stats) uint64 { return s.ResyncsReceived }),
	counter("falcon.resyncs_sent", "Resync packets sent.", func(s *falcon.Stats) uint64 { return s.ResyncsSent }),
	counter("falcon.rue_busy", "Congestion events that waited for an earlier one of their connection.", func(s *falcon.Stats) uint64 { return s.RUEBusy }),
	counter("falcon.rue_events", "Events given to the Rate Update Engine.", func(s *falcon.Stats) uint64 { return s.RUEEvents }),
	counter("falcon.rue_skipped", "Congestion events that were not raised.", func(s *falcon.Stats) uint64 { return s.RUESkipped }),
	counter("falcon.spurious_early", "Early retransmissions that were not needed.", func(s *falcon.Stats) uint64 { return s.SpuriousEarly }),
	counter("falcon.spurious_timeouts", "Retransmission timeouts that were not needed.", func(s *falcon.Stats) uint64 { return s.SpuriousTimeouts }),
	counter("falcon.timeout_retransmits", "Packets sent again after their retransmission timeout.", func(s *falcon.Stats) uint64 { return s.TimeoutRetransmits }),
	counter("falcon.txn_timeouts", "Transactions that timed out.", func(s *falcon.Stats) uint64 { return s.TxnTimeouts }),
	counter("falcon.xoffs", "Requests that had to wait for credit.", func(s *falcon.Stats) uint64 { return s.Xoffs }),
	gauge("falcon.conns", "Connections of the transport.", func(s *falcon.Stats) uint64 { return uint64(s.Conns) }),
	gauge("falcon.rx_cells", "Receive buffer cells in use.", func(s *falcon.Stats) uint64 { return uint64(s.RxCells) }),
	gauge("falcon.rx_contexts", "Receive contexts in use.", func(s *falcon.Stats) uint64 { return uint64(s.RxContexts) }),
	gauge("falcon.tx_contexts", "Transmit contexts in use.", func(s *falcon.Stats) uint64 { return uint64(s.TxContexts) }),
}

// OfRDMA is the table of the RDMA engine's counters.
var OfRDMA = table[*rdma.Stats]{
	counter("rdma.bad_doorbells", "Doorbells for queues that do not exist.", func(s *rdma.Stats) uint64 { return s.BadDoorbells }),
	counter("rdma.bad_qkeys", "Datagrams with a wrong Q_Key.", func(s *rdma.Stats) uint64 { return s.BadQKeys }),
	counter("rdma.bytes_rx", "Bytes of data placed in guests' memory.", func(s *rdma.Stats) uint64 { return s.BytesRx }),
	counter("rdma.bytes_tx", "Bytes of data sent from guests' memory.", func(s *rdma.Stats) uint64 { return s.BytesTx }),
	counter("rdma.cid_mismatches", "Packets for a queue pair that does not own the connection.", func(s *rdma.Stats) uint64 { return s.CIDMismatches }),
	counter("rdma.completed", "Work requests completed.", func(s *rdma.Stats) uint64 { return s.Completed }),
	counter("rdma.cq_overflows", "Completion queues that overflowed.", func(s *rdma.Stats) uint64 { return s.CQOverflows }),
	counter("rdma.credit_waits", "Times a queue pair waited for credit.", func(s *rdma.Stats) uint64 { return s.CreditWaits }),
	counter("rdma.datagrams_lost", "Datagrams that could not be sent or delivered.", func(s *rdma.Stats) uint64 { return s.DatagramsLost }),
	counter("rdma.errors", "Completions with an error.", func(s *rdma.Stats) uint64 { return s.Errors }),
	counter("rdma.flushed", "Work requests flushed from queue pairs in error.", func(s *rdma.Stats) uint64 { return s.Flushed }),
	counter("rdma.posted", "Work requests posted.", func(s *rdma.Stats) uint64 { return s.Posted }),
	counter("rdma.pulls_deferred", "READs and atomics of peers that were put off.", func(s *rdma.Stats) uint64 { return s.PullsDeferred }),
	counter("rdma.pulls_rx", "Pull requests received.", func(s *rdma.Stats) uint64 { return s.PullsRx }),
	counter("rdma.pulls_tx", "Pull requests sent.", func(s *rdma.Stats) uint64 { return s.PullsTx }),
	counter("rdma.pushes_rx", "Push requests received.", func(s *rdma.Stats) uint64 { return s.PushesRx }),
	counter("rdma.pushes_tx", "Push requests sent.", func(s *rdma.Stats) uint64 { return s.PushesTx }),
	counter("rdma.qp_errors", "Queue pairs that went to the error state by themselves.", func(s *rdma.Stats) uint64 { return s.QPErrors }),
	counter("rdma.rate_waits", "Times a queue pair waited for its function's rate.", func(s *rdma.Stats) uint64 { return s.RateWaits }),
	counter("rdma.refused", "Requests of peers that were refused.", func(s *rdma.Stats) uint64 { return s.Refused }),
	counter("rdma.rnr_rx", "Receiver-not-ready answers received.", func(s *rdma.Stats) uint64 { return s.RNRRx }),
	counter("rdma.rnr_tx", "Receiver-not-ready answers sent.", func(s *rdma.Stats) uint64 { return s.RNRTx }),
}

// OfNetwork holds the tables of the counters of wires that are Networks, by the wire's name.
var OfNetwork = networks()

func networks() map[string]table[*transport.PortStats] {
	all := map[string]table[*transport.PortStats]{}
	for _, k := range rdma.Wires {
		for _, c := range k.Counters {
			all[k.Name] = append(all[k.Name], counter(k.Name+"."+c.Name, c.Help, c.Of))
		}
	}
	return all
}

// OfGateway is the table of the counters of plain IP.
var OfGateway = table[*gateway.Stats]{
	counter("gateway.coalesced", "Packets joined to one frame for a port.", func(s *gateway.Stats) uint64 { return s.Coalesced }),
	counter("gateway.from_port_bytes", "Bytes of plain IP that ports sent.", func(s *gateway.Stats) uint64 { return s.FromPortBytes }),
	counter("gateway.from_ports", "Frames that ports sent.", func(s *gateway.Stats) uint64 { return s.FromPorts }),
	counter("gateway.handed_over", "Frames for ports of other shards.", func(s *gateway.Stats) uint64 { return s.HandedOver }),
	counter("gateway.local", "Frames between ports of this NIC.", func(s *gateway.Stats) uint64 { return s.Local }),
	counter("gateway.segments", "Packets cut from larger frames.", func(s *gateway.Stats) uint64 { return s.Segments }),
	counter("gateway.to_port_bytes", "Bytes of plain IP given to ports.", func(s *gateway.Stats) uint64 { return s.ToPortBytes }),
	counter("gateway.to_ports", "Frames given to ports.", func(s *gateway.Stats) uint64 { return s.ToPorts }),
	counter("gateway.tunnel_rx_bytes", "Bytes of plain IP received from peers.", func(s *gateway.Stats) uint64 { return s.TunnelInBytes }),
	counter("gateway.tunnel_rx_packets", "Packets of plain IP received from peers.", func(s *gateway.Stats) uint64 { return s.TunnelIn }),
	counter("gateway.tunnel_tx_bytes", "Bytes of plain IP sent to peers.", func(s *gateway.Stats) uint64 { return s.TunnelBytes }),
	counter("gateway.tunnel_tx_packets", "Packets of plain IP sent to peers.", func(s *gateway.Stats) uint64 { return s.TunnelPackets }),
}

// OfUplink is the table of the counters of the uplink's device.
var OfUplink = table[*tap.Stats]{
	counter("uplink.rx_bytes", "Bytes received by the uplink's device.", func(s *tap.Stats) uint64 { return s.RxBytes }),
	counter("uplink.rx_dropped", "Frames that the uplink's device did not give whole.", func(s *tap.Stats) uint64 { return s.RxDropped }),
	counter("uplink.rx_frames", "Frames received by the uplink's device.", func(s *tap.Stats) uint64 { return s.RxFrames }),
	counter("uplink.rx_overflowed", "Packets dropped because the buffer of the uplink's socket was full.", func(s *tap.Stats) uint64 { return s.RxOverflowed }),
	counter("uplink.rx_superframes", "Frames received that hold several packets.", func(s *tap.Stats) uint64 { return s.RxSuperframes }),
	counter("uplink.tx_bytes", "Bytes sent by the uplink's device.", func(s *tap.Stats) uint64 { return s.TxBytes }),
	counter("uplink.tx_dropped", "Frames that the uplink's device did not take.", func(s *tap.Stats) uint64 { return s.TxDropped }),
	counter("uplink.tx_frames", "Frames sent by the uplink's device.", func(s *tap.Stats) uint64 { return s.TxFrames }),
	counter("uplink.tx_refused", "Packets that the host did not send: it has no route, or forbids them.", func(s *tap.Stats) uint64 { return s.TxRefused }),
	counter("uplink.tx_superframes", "Frames sent that hold several packets.", func(s *tap.Stats) uint64 { return s.TxSuperframes }),
	counter("uplink.tx_too_long", "Packets longer than the host's interface takes.", func(s *tap.Stats) uint64 { return s.TxTooLong }),
}

// OfLinks is the table of the counters of the links to peers.
var OfLinks = table[*cmlink.Stats]{
	gauge("cmlink.certificate_ends", "When this NIC's certificate, or its authority's, ends: seconds since 1970.", func(s *cmlink.Stats) uint64 { return s.CertificateEnds }),
	counter("cmlink.down", "Links to peers that ended.", func(s *cmlink.Stats) uint64 { return s.Down }),
	counter("cmlink.handshake_failed", "Links that did not come up, but for a wrong identity.", func(s *cmlink.Stats) uint64 { return s.HandshakeFailed }),
	counter("cmlink.messages_in", "Messages received over links to peers.", func(s *cmlink.Stats) uint64 { return s.MessagesIn }),
	counter("cmlink.messages_out", "Messages sent over links to peers.", func(s *cmlink.Stats) uint64 { return s.MessagesOut }),
	counter("cmlink.ousted", "Connections closed for newer ones before they proved who they are.", func(s *cmlink.Stats) uint64 { return s.Displaced }),
	counter("cmlink.refused_identity", "Peers that could not prove the identity that is configured for them.", func(s *cmlink.Stats) uint64 { return s.RefusedIdentity }),
}

// Directory holds the counters of a NIC's part in a fleet.
type Directory struct {
	directory.Stats
	Watching         bool
	Hosts            int
	Refused, NotDone uint64
}

// OfDirectory is the table of the counters of a fleet.
var OfDirectory = table[*Directory]{
	counter("directory.changes", "Changes of the fleet that etcd reported.", func(s *Directory) uint64 { return s.Changes }),
	counter("directory.compactions", "Times that etcd had forgotten what was missed, so that all was read again.", func(s *Directory) uint64 { return s.Compactions }),
	counter("directory.denied", "Times that etcd, or this NIC, refused the other.", func(s *Directory) uint64 { return s.Denied }),
	counter("directory.failures", "Times that etcd was not reached, or a watch ended.", func(s *Directory) uint64 { return s.Failures }),
	gauge("directory.hosts", "Hosts that have a record or a grant.", func(s *Directory) uint64 { return uint64(s.Hosts) }),
	counter("directory.leases_lost", "Times that the lease of this host's record ran out.", func(s *Directory) uint64 { return s.LeasesLost }),
	counter("directory.lists", "Times that all of the fleet was read.", func(s *Directory) uint64 { return s.Lists }),
	counter("directory.not_done", "Things that the directory says and this NIC could not do.", func(s *Directory) uint64 { return s.NotDone }),
	counter("directory.old_changes", "Changes that etcd reported a second time.", func(s *Directory) uint64 { return s.Old }),
	counter("directory.refused", "Claims of hosts that were not believed.", func(s *Directory) uint64 { return s.Refused }),
	gauge("directory.watching", "1: changes of the fleet are heard of; 0: the fleet is as it was known last.", func(s *Directory) uint64 {
		if s.Watching {
			return 1
		}
		return 0
	}),
	counter("directory.yields", "Times that another NIC had this one's name.", func(s *Directory) uint64 { return s.Yields }),
}

// OfCM is the table of the counters of connection management.
var OfCM = table[*cm.Stats]{
	counter("cm.bad_rep", "Replies to connection requests that fit no request.", func(s *cm.Stats) uint64 { return s.BadREP }),
	counter("cm.cut_short", "Ended connections that made way at once for another of the same function.", func(s *cm.Stats) uint64 { return s.CutShort }),
	counter("cm.disconnected", "Connections that were disconnected.", func(s *cm.Stats) uint64 { return s.Disconnected }),
	counter("cm.duplicate_req", "Connection requests that came a second time.", func(s *cm.Stats) uint64 { return s.DuplicateREQ }),
	counter("cm.established", "Connections that were established.", func(s *cm.Stats) uint64 { return s.Established }),
	counter("cm.gid_refused", "Requests of peers for addresses that are not theirs.", func(s *cm.Stats) uint64 { return s.GIDRefused }),
	counter("cm.illegal_events", "Messages that do not fit the state of their connection.", func(s *cm.Stats) uint64 { return s.IllegalEvents }),
	counter("cm.keys_received", "Keys that peers gave out.", func(s *cm.Stats) uint64 { return s.KeysReceived }),
	counter("cm.limit_refused", "Connection requests refused because a limit was reached.", func(s *cm.Stats) uint64 { return s.LimitRefused }),
	counter("cm.malformed", "Messages that could not be read.", func(s *cm.Stats) uint64 { return s.Malformed }),
	counter("cm.no_listener", "Connection requests for a service that nobody listens for.", func(s *cm.Stats) uint64 { return s.NoListener }),
	counter("cm.peer_restarts", "Peers that came back without what they knew.", func(s *cm.Stats) uint64 { return s.PeerRestarts }),
	counter("cm.received", "Messages of connection managers received.", func(s *cm.Stats) uint64 { return s.Received }),
	counter("cm.rekey_requests", "New keys that were asked for.", func(s *cm.Stats) uint64 { return s.RekeyRequests }),
	counter("cm.rekeyed", "Keys that were replaced.", func(s *cm.Stats) uint64 { return s.Rekeyed }),
	counter("cm.retries", "Messages sent again because no answer came.", func(s *cm.Stats) uint64 { return s.Retries }),
	counter("cm.route_address_refused", "Offers of addresses that a peer may not have.", func(s *cm.Stats) uint64 { return s.RouteAddressRefused }),
	counter("cm.route_conflicts", "Offers of an address that another function has.", func(s *cm.Stats) uint64 { return s.RouteConflicts }),
	counter("cm.route_function_refused", "Offers of functions that a peer may not have.", func(s *cm.Stats) uint64 { return s.RouteFunctionRefused }),
	counter("cm.route_tenant_refused", "Offers of tenants that a peer may not have.", func(s *cm.Stats) uint64 { return s.RouteTenantRefused }),
	counter("cm.send_dropped", "Messages lost because the link to the peer was down.", func(s *cm.Stats) uint64 { return s.SendDropped }),
	counter("cm.sent", "Messages sent to other connection managers.", func(s *cm.Stats) uint64 { return s.Sent }),
	counter("cm.spi_refused", "Packets that came for a connection under a key of another connection.", func(s *cm.Stats) uint64 { return s.SPIRefused }),
	counter("cm.tenant_refused", "Requests of peers for tenants that are not theirs.", func(s *cm.Stats) uint64 { return s.TenantRefused }),
	counter("cm.timeouts", "Requests that were never answered.", func(s *cm.Stats) uint64 { return s.Timeouts }),
	counter("cm.unknown_connection", "Messages about connections that are not here.", func(s *cm.Stats) uint64 { return s.UnknownConnection }),
}

// OfNIC is the table of the counters of a NIC outside its shards.
var OfNIC = table[*NIC]{
	gauge("nic.guest_memory", "Bytes of guests' memory that are mapped, each time that they are.", func(s *NIC) uint64 { return s.GuestBytes }),
	gauge("nic.guest_memory_maps", "Pieces of guests' memory that are mapped.", func(s *NIC) uint64 { return s.GuestMaps }),
	counter("nic.guest_memory_refused", "Pieces of guests' memory that were too much to be mapped.", func(s *NIC) uint64 { return s.GuestRefused }),
	gauge("nic.warnings", "Things that the configuration asks for and the NIC runs without.", func(s *NIC) uint64 { return s.Warnings }),
}

// OfCapture is the table of the counters of the configured capture.
var OfCapture = table[*NIC]{
	counter("capture.dropped", "Packets missing in the capture of the configuration.", func(s *NIC) uint64 { return s.CaptureDropped }),
}

// OfWorker is the table of the counters of the process that a supervisor keeps running.
var OfWorker = table[*NIC]{
	counter("worker.starts", "Times that the NIC's process was started.", func(s *NIC) uint64 { return s.Starts }),
	counter("worker.stuck", "Processes replaced because their event loop was stuck.", func(s *NIC) uint64 { return s.Stuck }),
}

// ofReasons describes the counters by reason of the gateway and the underlay that are not drops.
var ofReasons = []Counter{
	{Name: "gateway.arp_answered", Help: "ARP requests of guests answered."},
	{Name: "gateway.asked", Help: "Requests sent to ports of trusted functions for the MAC of an address that had not been heard."},
	{Name: "gateway.dhcp_answered", Help: "DHCP requests of guests answered."},
	{Name: "gateway.echo_answered", Help: "ICMP echo requests answered."},
	{Name: "gateway.fragmented", Help: "IPv4 packets that left in fragments, since they were longer than their way and may be."},
	{Name: "gateway.fragments", Help: "Fragments carried, as they came."},
	{Name: "gateway.icmp_sent", Help: "ICMP errors sent to guests."},
	{Name: "gateway.nd_answered", Help: "Neighbour solicitations of guests answered."},
	{Name: "gateway.nested", Help: "Packets that were sealed inside another tunnel."},
	{Name: "underlay.arp", Help: "ARP packets of the underlay."},
	{Name: "underlay.claim", Help: "Claims of a neighbour's address that were not believed."},
	{Name: "underlay.deliver", Help: "Packets of the underlay for this NIC."},
	{Name: "underlay.nd", Help: "Neighbour discovery packets of the underlay."},
	{Name: "underlay.parked", Help: "Packets that waited for a neighbour's address."},
	{Name: "underlay.sent", Help: "Packets sent on the underlay."},
}

func init() {
	for _, c := range ofReasons {
		known[c.Name] = c
	}
}

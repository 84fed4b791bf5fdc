// Package cm is the connection manager. It agrees with the connection manager of another NIC on
// everything that a Falcon connection needs before its first packet (connection identifiers,
// initial sequence numbers, queue pairs, security associations), and it ends connections.
//
//	        active side                                   passive side
//	Connect ─ AllocCID ── REQ{CID,PSNs,SA,QPN} ──────▶ OutRequest to the listener
//	                                                   Accept ─ AllocCID
//	OutOpen, OutEstablished ◀─ REP{CID,PSNs,SA,QPN} ── OutOpen
//	         ───────────────── RTU ──────────────────▶ OutEstablished
//	   …                                                 …
//	Disconnect ─ OutClose ──── DREQ ─────────────────▶ OutClose, OutDisconnected
//	TIME-WAIT ◀─────────────── DREP ────────────────── TIME-WAIT
//
// A connection's states (the table is in conn.go):
//
//	REQ-SENT ───────────▶ ESTABLISHED ─▶ DREQ-SENT ─▶ TIME-WAIT ─▶ CLOSED
//	REQ-RECEIVED ▶ REP-SENT ──▲                          ▲
//	     any pending state that fails ───────────────────┘
//
// # The link
//
// Messages travel over an authenticated, ordered link. It loses nothing while it is up, and
// everything in flight when it breaks. Each time the link comes up, both sides first send Hello:
// the host, the instance of the process, and the {tenant, GID, function} triples that the NIC
// offers in the tenants it shares with the peer. Routes are learned from Hello. A message that
// arrives before Hello is left over from an earlier link and is ignored.
//
// Established connections survive an outage of the link. Pending ones end with ReasonPeerDown. When
// the link is back, each side confirms every established connection with an RTU. The other side
// answers an RTU for an unknown connection with REJ, which ends it. A peer whose instance changed
// has lost its keys with its memory, so all connections to it end with ReasonPeerRestarted. A NIC
// that forgets a single peer (ForgetPeer) announces another instance to that peer.
//
// A connection between two functions of this NIC works the same way: the NIC is its own peer, with
// a link that is always up. Each end has an entry, an ID and a CID; there are no keys.
//
// # Keys
//
// A peer seals with the newest SA that it got from us: in an offer, or in REKEY, which replaces the
// SA while connections continue (rekey.go).
//
// # Trust
//
// In every message, a peer may refer only to the tenants listed for it in Config.Peers, to
// functions whose host byte is its own, and to addresses that it may have (Peer.MayHave) and has
// announced. directory.go contains the one check. Everything else is refused and counted. Every table
// has a limit.
//
// # Parts
//
// Each part has its own data and depends only on the parts below it:
//
//	Manager      requests of functions, peers that come and go (manager.go), messages of peers (receive.go)
//	handshake    the course of a connection: its state machine, actions and offers (conn.go)
//	table        connections by their IDs, those of each function, limits, services (table.go)
//	directory    where addresses of functions and ports are, and which of the peers that announce an
//	             address has it (directory.go)
//	rekeying     keys that are given and requested (rekey.go)
//	peers        the other NICs, and this one (peer.go)
//	messages     Encode and Parse (message.go), of connections (connect_messages.go), of keys (rekey.go)
//
// # Ownership and concurrency
//
// The package does no I/O, reads no clock and starts no goroutine: time and randomness are
// arguments. A Manager has one owner (the core of a NIC) and is not safe for concurrent use. Calls
// only append outputs, which the owner drains with Next after each call. The receiver owns the
// slices in an Output.
//
// For each OutOpen there is exactly one OutClose, in this order. Each connection ends with exactly
// one of OutRejected, OutUnreachable and OutDisconnected, unless its function is gone or itself
// rejected the request. A CID is freed only after its TIME-WAIT, so that packets still in flight
// cannot reach a new connection with the same CID.
//
// References: Falcon Transport Protocol §6.2 (a CID is allocated by the receiver
// during connection set-up, which the specification leaves open), §9.2.2
// (security parameters of a connection); the message exchange follows the
// InfiniBand CM (IBA volume 1, chapter 12). The bytes are this project's own
// and are documented in docs/wire.md.
package cm

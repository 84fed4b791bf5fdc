// Package cm is the connection manager: it agrees with the connection manager
// of another NIC on everything a Falcon connection needs before its first
// packet — connection identifiers, initial sequence numbers, queue pairs,
// security associations — and takes connections down again.
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
// A connection's states (the table is in transition.go):
//
//	REQ-SENT ───────────▶ ESTABLISHED ─▶ DREQ-SENT ─▶ TIME-WAIT ─▶ CLOSED
//	REQ-RECEIVED ▶ REP-SENT ──▲                          ▲
//	     any pending state that fails ───────────────────┘
//
// # The link
//
// Messages travel over an authenticated, ordered link that loses nothing while
// it is up and everything in flight when it breaks. Each time the link comes
// up both sides first send Hello: host, instance of the process, and the
// {tenant, GID, function} triples the NIC offers in the tenants it shares with
// that peer. Routes are learned from it. What arrives before Hello is left over
// from an earlier link and is ignored.
//
// Established connections outlive an outage of the link. Pending ones end with
// ReasonPeerDown. When the link is back, each side confirms every established
// connection by an RTU; one that the other side no longer knows is answered by
// REJ and ends. A peer whose instance changed has lost its keys with its
// memory, so all connections to it end with ReasonPeerRestarted. A NIC that forgets one peer alone
// (ForgetPeer) tells that one of another instance.
//
// A connection between two functions of this NIC goes the same way: the NIC is a
// peer of its own whose link is always up. Each end has an entry, an ID and a
// CID; there are no keys.
//
// # Keys
//
// A peer seals with the SA that the newest message from us brought: an offer, or
// REKEY, which replaces it while connections go on (rekey.go).
//
// # Trust
//
// A peer may speak only for the tenants listed for it in Config.Peers, for
// functions whose host byte is its own, and for addresses that it may have
// (Peer.MayHave) and has told of, whatever the message: claims.go has the one
// check. All else is refused and counted. Every table has a limit.
//
// # Parts
//
// Each part has what it is about, and knows only those below it:
//
//	Manager      manager.go: what functions ask · links.go: peers come and go, what they are told ·
//	             receive.go: their messages · inspect.go: what there is
//	handshake    what connections go through: transition.go says when, action.go what, limits.go
//	             for how many, handshake.go what is offered
//	table        connections by their names, and what each function has of them
//	services     that functions listen on
//	directory    where addresses are           portBook   where addresses of ports are
//	claims       who of those that tell of an address has it, for both
//	rekeying     keys that are given and asked for
//	outbox       what is to be done, and counts peers      the other NICs, and this one
//	messages     hello.go, req.go, …: one file each
//
// # Ownership and concurrency
//
// The package does no I/O, reads no clock and starts no goroutine: time and
// randomness are arguments. A Manager has one owner (the core of a NIC) and is
// not safe for concurrent use. Calls only append outputs, which the owner
// drains with Next after each call; slices in an Output belong to the reader.
//
// For each OutOpen there is exactly one OutClose, in this order. Each
// connection ends with exactly one of OutRejected, OutUnreachable and
// OutDisconnected, unless its function is gone or itself rejected the request.
// A CID is freed only after its time-wait, so that packets still in flight
// cannot meet a new connection with the same CID.
//
// References: Falcon Transport Protocol §6.2 (a CID is allocated by the receiver
// during connection set-up, which the specification leaves open), §9.2.2
// (security parameters of a connection); the message exchange follows the
// InfiniBand CM (IBA volume 1, chapter 12). The bytes are this project's own
// and are documented in docs/wire.md.
package cm

// Package cmlink carries the messages of the connection managers between NICs:
// one TCP connection per pair of NICs on the host kernel's network, mutual
// TLS 1.3, messages framed by a length.
//
//	a                                             b
//	dials (first name) ── TCP ──────────────────▶ accepts (second name)
//	ClientHello, ALPN vnic-cm/2 ────────────────▶
//	  ◀── certificate, URI SAN vnic://lab/host/b
//	certificate, URI SAN vnic://lab/host/a ─────▶ identity of a configured peer?
//	PeerUp ◀───────────── keepalive ───────────── yes: PeerUp
//	  ◀──────────────── frames ────────────────▶
//
// A NIC is the name in its certificate. Of two NICs the one whose name comes first dials: the shorter
// one, or the first by its letters. The other one dials if nobody dialed it for a while: the first may
// be behind NAT, or not know its address.
//
// The first keepalive tells the dialer that its certificate was accepted, which the TLS 1.3 handshake
// alone does not. Keepalives carry the clock of their sender, since certificates are judged by clocks.
//
// A certificate must be signed by the fabric's CA, be within its validity and
// name exactly the identity configured for that peer. Anything else is refused,
// counted and logged at a limited rate.
//
// # Strangers
//
// Anyone who can reach the port can open connections. Connections that have not yet proved an
// identity are bounded, in total and per address; peers' addresses have places of their own. When
// there is no place left, a new connection replaces the oldest one that has sent nothing. A
// connection that sends no ClientHello is closed after a second.
//
// # Guarantees
//
// Messages arrive in order, and none is lost between PeerUp and PeerDown: a sender whose queue is
// full breaks the connection rather than dropping a message. PeerUp, Message, PeerDown and PeerRevoked
// of one peer are called one after the other; those of different peers may be called at the same time. A
// message sent before the sender saw PeerDown may still be sent on the next connection. For this
// reason package cm ignores messages before its Hello.
//
// # Ownership and concurrency
//
// A Link's methods may be called from any goroutine. While a Handler's method blocks, nothing more
// is read from that peer. Close waits for the method, so the method must not call Close. After
// Close no callback runs and no goroutine is left.
package cmlink

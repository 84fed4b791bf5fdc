// Package pathmtu finds the longest packet that the network carries to a peer, as RFC 8899 (packet
// layer path MTU discovery for datagrams) describes it. Probes travel as sealed packets of the
// gateway class, so they take the way that traffic takes and cannot be forged.
//
//	silent ── Least answered ──▶ searching ── nothing longer passes ──▶ found
//	   │                             ▲                                   │ every 30 s
//	   └──── Most answered ──▶ found │                                   ▼
//	                                 └── MTU no longer passes, or ── confirming
//	                                     something longer does
//
// A router may send long packets another way at any time, and drop them there. Half a minute of that
// would be a black hole. So while long packets are being sent (Used), the MTU is checked every half
// second, with a timer that follows the round trips (RFC 8899 §5.1.1). If it is not answered four times
// in a row and something shorter is, the MTU is the longest usual size that is answered, and the search
// goes on from there.
//
// A NIC whose peer answers no probe at all, because it is an older program or has no key yet, goes
// on with the MTU that its configuration gives.
//
// A Prober belongs to one goroutine. It reads no clock and does no I/O. A packet that a switch drops
// for its length leaves no trace, so only silence tells: what is not answered three times while
// something shorter is does not pass. Messages of routers, which anybody can forge, are not needed.
package pathmtu

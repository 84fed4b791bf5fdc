// Package directory tells a NIC who its peers are, and tells them where it is and what it has, by keys in etcd.
//
//	PREFIX/hosts/NAME    what a host says of itself; it lives as long as the host's lease
//	PREFIX/grants/NAME   what it may claim; written by operators
//	PREFIX/authority     the certificates that the fleet trusts, and those that are revoked
//	PREFIX/renew/NAME    a host asks for another certificate
//	PREFIX/certs/NAME    and gets it
//
//	etcd ◀─ asks ── Client ◀─ Ask ──── Session ── View ─▶ Peers ─▶ the NIC
//	     ── answers ─▶      ── events ─▶
//
// A Session decides what to ask and when: it lists once, watches from there, keeps the host's record
// under a lease, and goes on with what was known while etcd is away. A View holds what was read, and
// decides who may have which address. Both are functions of their inputs: no clock, no I/O. A Client
// carries the asks to etcd and the answers back.
//
// # What is believed
//
// etcd's roles let a host write its own record alone. A NIC relies on that for nothing: an address is
// a host's only if a grant allows it and no other host has it before, and a peer is who its
// certificate says on the link (device/cmlink), whatever a record says.
//
// # Ownership and concurrency
//
// A Session with its View belongs to the goroutine that runs the Client. A Client's other methods may
// be called from any goroutine. Nothing on a data path waits for any of it.
package directory

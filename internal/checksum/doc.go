// Package checksum is the Internet checksum (RFC 1071), of which headers of IPv4, TCP, UDP and ICMP have
// the complement.
//
//	header, pseudo header, payload ─▶ Sum of each ─▶ added as uint32 ─▶ Fold ─▶ 0xffff: it is right
//
// The functions keep nothing and may be called from any goroutine.
package checksum

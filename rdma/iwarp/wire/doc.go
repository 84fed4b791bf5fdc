// Package wire defines the bytes of iWARP on a stream: the frames with which MPA begins a
// connection, its framing with CRC and markers, and the headers of DDP and RDMAP with the atomics
// and immediate data of RFC 7306.
//
//	initiator ── Request ─────────────────▶ responder     Frame: flags, revision, private data
//	          ◀─────────────────── Reply ──
//	          ── FPDU ── FPDU ── … ───────▶               both ways from here on
//
//	FPDU      | length | ULPDU | pad to 4 bytes | CRC32c |    and every 512 bytes a marker, if asked for
//	ULPDU     | Header (DDP and RDMAP) | RDMAP header or data |
//	            tagged:   WRITE, READ Response     | data |
//	            untagged: SEND                     | data |
//	                      READ Request             | ReadRequest |
//	                      Immediate Data           | 8 bytes |
//	                      Atomic Request, Response | AtomicRequest, AtomicResponse |
//	                      Terminate                | Terminate |
//
//	mpa      Request and Reply Frames (RFC 5044 §7.1, RFC 6581 §6, §9)
//	fpdu     FPDUs, their CRC and their longest ULPDU (RFC 5044 §4.1, §4.4, §4.5)
//	markers  FPDUs with markers (RFC 5044 §4.2, §4.3)
//	ddp      opcodes and headers of segments (RFC 5041 §4, RFC 5040 §4.1, §4.2, RFC 7306 §4)
//	rdmap    headers of single messages (RFC 5040 §4.4, RFC 7306 §5.2, §6.2)
//	cause    why a stream ends, and Terminate (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8)
//
// What is parsed comes from a peer that is not trusted. An error is ErrIncomplete where more of the
// stream is needed, or the Cause that a Terminate message gives the peer.
//
// All fields are big-endian but for the CRC, whose bytes are in iSCSI's order. Reserved bits are
// sent as zero and ignored on receipt. The package has no state and imports nothing of this module.
// Nothing allocates, blocks or keeps a reference to its arguments; slices in results are parts of
// what was parsed.
package wire

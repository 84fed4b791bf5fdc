// Package rdmap holds the RDMA protocol extensions of RFC 7306 as wire formats: the DDP segments
// of Immediate Data, Immediate Data with Solicited Event, Atomic Request and Atomic Response, the
// checks a receiver makes on them, and the exact arithmetic of the masked atomic operations.
//
//	DDP control, RDMAP control 2 | reserved 4 | QN 4 | MSN 4 | MO 4 |
//	    Immediate Data     data 8                                                       26 bytes
//	    Atomic Request     AOpCode 4, id 4, STag 4, TO 8, data, mask, compare, mask     70 bytes
//	    Atomic Response    id 4, original 8                                             30 bytes
//
// FetchAdd, CmpSwap and Swap are what the responder of package rdma carries out for masked atomics.
// The segments are a library: no transport of this module sends them. An iWARP binding, which adds
// RFC 5040, 5041 and 5044 below and beside it, can be built on them: it hands Parse each untagged
// DDP segment of the queues 0, 1 and 3, carries out Result by compare and swap once CheckAddress
// agrees, and turns any error into the Terminate Message whose first word Terminate.Control makes.
//
// The package has no state and imports nothing of this module. Every segment is one file with a
// struct, Append (encode behind b) and Parse. Parse takes a whole DDP segment, whose length the
// lower layer knows, and refuses what RFC 7306 §8.2 says must be validated with a Terminate, the
// error that names what the Terminate Message to the peer has to say. What needs state stays
// with the caller: the order of MSNs, STag and bounds, and the alignment of the address that STag
// and offset resolve to (CheckAddress).
//
// All fields are big-endian, after the figures of Appendix A. RFC 7306 §4 gives the Atomic Response
// header 32 bytes; its figure, followed here, has 12.
//
// No function allocates, blocks or keeps a reference to its arguments; all are safe for concurrent
// use.
package rdmap

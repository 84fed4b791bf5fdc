// Package trace follows single requests through the device, from doorbell to completion.
//
//	rdma, device ─ Add ─▶ Ring ─ Take ─▶ Assembler ─▶ Operation, one per request
//	(while they work)     (bounded)      (elsewhere, any time later)
//
// The code that does the work only notes that something happened, and when: an Event in the
// function's Ring. A function that nobody traces has no Ring, and a nil check is all it costs. The
// events of a request are put together afterwards, away from the data path.
//
// A request has two sides, which two functions see, each with its own clock:
//
//	requester   doorbell ▸ read ▸ issued ▸ scheduled ▸ sealed ▸ last sealed ▸ acked ▸ completed ▸ event
//	responder   received ▸ opened ▸ delivered ▸ completed ▸ event ▸ acked                       each SEND and WRITE packet
//	            received ▸ opened ▸ delivered ▸ scheduled ▸ sealed ▸ acked                      each READ and atomic request
//
// Inside one NIC (loopback) nothing is sealed, sent or received; the steps in between are missing.
//
// # Bounds
//
// A Ring holds a fixed number of events; newer ones push out the oldest, which are counted. An
// Assembler holds a fixed number of requests that are not complete; the oldest make room, and come
// out as far as they were seen.
//
// A Ring belongs to the shard's goroutine, an Assembler to whoever made it. Ring.Add does not
// allocate.
package trace

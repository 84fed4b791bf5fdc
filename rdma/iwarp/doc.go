// Package iwarp implements iWARP: RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) and MPA (RFC 5044,
// RFC 6581) on an ordered stream of bytes. To queue pairs it provides the contract of package
// transport. The owner of the stream, which is TCP's or a test's, makes all calls; nothing calls it.
// Package wire defines the bytes.
//
//	queue pair        requester               stream               responder          queue pair
//	  │ Issue             │                      │                     │                    │
//	  ├──────────────────▶│ push or pull         │                     │                    │
//	  │            Gather │ when it is sent      │                     │                    │
//	  │◀──────────────────┤── Transmit ─────────▶│── Receive ─────────▶│                    │
//	  │                   │                      │                     ├── Place ──────────▶│
//	  │                   │◀── Acknowledged ─────┤                     ├── Complete ───────▶│
//	  │◀─────────── Done  ┤ SENDs, WRITEs        │                     ├── Read, Atomic ───▶│
//	  │                   │◀── Receive ──────────┤◀──── Transmit ──────┤ answers            │
//	  │◀─── Scatter, Done ┤ READs, atomics       │                     │                    │
//
//	engine      what a shard has: connections with something to send, events, buffers
//	conn        a connection, as its queue pair has it
//	mpa         how it begins, FPDUs in and out
//	requester   own requests: issued, sent, acknowledged, answered
//	responder   the peer's requests: SENDs, WRITEs, Immediate Data; READs and atomics, and their answers
//	ending      Terminate both ways, its causes and the statuses that they stand for; the end of the stream
//
// # What is sent
//
// Messages are sent one after the other, requests and answers alternate. Each call of Transmit writes
// one FPDU, which fits into a segment of TCP. Nothing that was sent is kept: TCP sends again. A SEND or
// WRITE is done when TCP has it acknowledged. A READ is one request, however long; its answer is for an
// STag that was made for it alone, at random, and which gives the peer nothing else. A WRITE with
// immediate data is an RDMA WRITE and an Immediate Data message (RFC 7306 §6).
//
// # What is taken
//
// Everything is carried out as it comes, because the stream has it in order; answers go in the order
// of the requests. STags of requests are keys of package verbs, which belong to a protection domain.
// A peer is not trusted: what does not fit ends the stream, with a Terminate that says why. A peer can
// make an end keep one FPDU that has not come in full, and as many answers as were agreed on.
//
// # What iWARP does not have
//
// Datagrams, unreliable and extended reliable connections; SENDs with immediate data; receivers that
// are not ready: a SEND that finds no receive ends the stream. Conn.Features says so.
//
// # Ownership
//
// An Engine with all of its connections belongs to one goroutine. Nothing allocates memory per FPDU.
// Random numbers are those of a generator that UseRandom seeds.
package iwarp

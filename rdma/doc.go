// Package rdma carries out verbs for the functions of one shard: protection domains, memory
// regions, completion queues and reliably connected queue pairs, over Falcon connections (RDMA over
// Falcon, specification 0.9) or inside the NIC: transport.go is what a queue pair asks of either,
// loopback.go the latter.
//
// The life of a WRITE, with the file each step is in:
//
//	guest               requester                    falcon                 responder               guest
//	  │ WQE, producer index │                           │                         │                     │
//	  ├────────────────────▶│ poll.go, or the doorbell  │                         │                     │
//	  │                     │ queue.go, read once       │                         │                     │
//	  │                     │ work.go, check            │                         │                     │
//	  │                     │ requester.go, segment     │                         │                     │
//	  │                     ├── Push ──────────────────▶│                         │                     │
//	  │ sge.go, gather      │ fill.go, every            │                         │                     │
//	  │◀────────────────────┤ (re)transmission ◀── Fill ┤                         │                     │
//	  │                     │                           ├── EvPush ──────────────▶│ responder.go, check │
//	  │                     │                           │                         │ sge.go, scatter     │
//	  │                     │                           │                         ├────────────────────▶│
//	  │                     │                           │◀──────────────── AckPush┤                     │
//	  │                     │◀────────────── EvPushDone ┤                         │ receive.go, cq.go   │
//	  │ cq.go, CQE, event   │ complete.go, in order     │                         │ with immediate: CQE │
//	  │◀────────────────────┤                           │                         ├────────────────────▶│
//
// READs and atomics are pulls: pull.go answers them. An atomic runs once, when its request arrives;
// the data of a READ is gathered each time falcon sends the response. status.go maps refusals to
// ibv_wc_status; modify.go is the table of a QP's states, qpstate.go and flush.go are how it fails;
// atomic.go has the masked atomics. The objects are in pd.go (with XRC domains), mr.go, mw.go,
// cq.go, srq.go, create.go, qp.go, path.go and function.go; events.go words what the driver is
// told.
//
// Datagrams (datagram.go) need no connection of their queue pair: each work request names an
// address handle (ah.go), whose link (link.go) is the one connection for all datagrams between two
// functions that want the same order, and outgoing.go its queue. wired.go is what a queue pair does
// whose driver named the peer, until the device has made the connection: what concerns its own side
// alone. traced.go notes the steps of requests for package trace while somebody looks.
//
// # Ordering and errors
//
// A QP on an ordered Falcon connection is strongly ordered, on an unordered one weakly ordered
// (§6.2): data is placed as it arrives, atomics wait for what was sent before them, completions
// keep the order of the requests on both sides. One made unordered completes requests and receives
// as they are done.
//
// Errors are verbs compatible or complete in error (§6.3), as the QP was made. Compatible: a
// refused push gets a non-recoverable NACK, a refused pull a complete-in-error response, both with
// a syndrome; both QPs move to ERR and flush. A failed QP keeps its connection for Config.Linger,
// so that the refusal reaches the peer. In error: the NACK says so, the request and the receive its
// message took end in error, and both QPs go on; who cannot send what it promised marks the packets
// with CE.
//
// Receiver not ready is Falcon's to repeat; the requester only counts it against the QP's RNR
// retry.
//
// # Trust
//
// The guest and the peer are hostile. Queue entries are copied once and checked on the copy; every
// access to guest memory goes through queues.Area, which turns a fault into an error; numbers and
// keys carry generations and belong to one function. A driver that breaks the rules of queues and
// doorbells stops its function (Notifier.Fault); a wrong request costs its QP; a wrong packet costs
// the connection it came on. Fixed sets bound what a QP has in flight: works, segments, received
// messages, pulls being served.
//
// # Ownership and time
//
// An Engine and everything made from it belong to one goroutine, the shard's. There are no locks,
// and no calls back: falcon calls Fill alone, events come through HandleEvent, and the Notifier
// appends to queues. Time is an argument. Nothing allocates per operation. Poll looks at send
// queues that ran empty a short while ago, a bounded number at a time, and Arm asks for doorbells
// before the shard parks. Run works in turns, round robin over the QPs that have work; a QP that
// waits for credit, a window, a fence or a receive is in no queue until the event that frees it.
package rdma

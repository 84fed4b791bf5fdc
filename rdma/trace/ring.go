package trace

// Kind is what happened.
type Kind uint8

// What happens to a request at the function that posted it. Work says which one.
const (
	Doorbell  Kind = iota + 1 // the driver says that entries before Index are there
	Found                     // the same, seen in the ring by polling it
	Read                      // the entry was read; Op is the ABI's opcode, Arg the wr_id, Extra the length
	Issued                    // its first packet has credits and a place in the order; Extra is the packet's sequence number
	Scheduled                 // the transport takes a packet for sending, for the first time or again; Extra as above
	Sealed                    // that packet is sealed and on its way to the uplink
	Acked                     // a packet was acknowledged, or answered by a READ's data; Extra as above
	Completed                 // its CQE is in memory, Extra is the CQ; with Silent there is none
)

// What happens to a packet of the peer, and to the response. Conn and Index, its RSN, say which
// one.
const (
	Received  Kind = iota + 32 // the frame is here; Extra is the packet's PSN
	Opened                     // decrypted and known as the connection's
	Delivered                  // its data is in memory, or its request is being answered; Op is the wire's opcode, Arg the QP, Extra the length
	Answered                   // all packets before PSNs Index (requests) and Extra (data) are acknowledged
	Concluded                  // answered inside the NIC
)

// Gone says that nobody will acknowledge a datagram, or a response: it was sent. Work and Index, or
// Conn and Index, say which one.
const Gone Kind = 65

// Signalled is the event of CQ Extra: on its way to the driver.
const Signalled Kind = 64

// Flags of an Event.
const (
	Responder uint8 = 1 << iota // Scheduled, Sealed, Acked, Completed: of a response, or of a receive
	Data                        // Received: the PSN is one of the data window
	Wanted                      // Completed: Signalled follows. Delivered: Completed follows
	Silent                      // Completed: no CQE was asked for
	Loopback                    // inside the NIC
	Answering                   // Delivered: a response follows
	Owed                        // Issued: Acked or Gone follows, also behind Completed
)

// Event is one thing that happened.
type Event struct {
	At     int64 // ns of the ring's clock
	Arg    uint64
	Work   uint32 // QP
	Conn   uint32 // connection identifier
	Index  uint32 // of the WQE; RSN
	Extra  uint32
	Kind   Kind
	Op     uint8
	Status uint8 // of a completion
	Flags  uint8
	Wire   uint8 // Issued, Scheduled, Delivered: number of the wire
}

// Ring holds the latest events of a function.
type Ring struct {
	events []Event
	added  uint64 // ever
	taken  uint64 // ever, or pushed out
	lost   uint64
	clock  func() int64
	qpn    uint32

	packet Event // that the transport took last, until it is sealed
	cqe    Event // the request that the next CQE is for
}

// NewRing makes a ring of at least size events. clock tells the time, which goes on within what a
// shard does at one moment. With a qpn only requests of that queue pair are held.
func NewRing(size int, clock func() int64, qpn uint32) *Ring {
	n := 1
	for n < size {
		n *= 2
	}
	return &Ring{events: make([]Event, n), clock: clock, qpn: qpn}
}

// Now is the time.
func (r *Ring) Now() int64 { return r.clock() }

// Wants reports whether requests of a queue pair are traced.
func (r *Ring) Wants(qpn uint32) bool { return r.qpn == 0 || r.qpn == qpn }

// Add notes an event that happens now.
func (r *Ring) Add(e *Event) {
	e.At = r.clock()
	r.put(e)
}

func (r *Ring) put(e *Event) {
	r.events[r.added&uint64(len(r.events)-1)] = *e
	if r.added++; r.added-r.taken > uint64(len(r.events)) {
		r.taken++
		r.lost++
	}
}

// Filled notes that the transport takes a packet, of a request or of a response. SealedPacket is
// next to come.
func (r *Ring) Filled(e *Event) {
	r.Add(e)
	r.packet = *e
}

// Unfilled takes Filled back: there is no packet to seal after all.
func (r *Ring) Unfilled() { r.packet = Event{} }

// SealedPacket notes that the packet of Filled, if there was one, is sealed.
func (r *Ring) SealedPacket() {
	if e := r.packet; e.Kind != 0 {
		r.packet = Event{}
		e.Kind = Sealed
		r.Add(&e)
	}
}

// Completing says whose the next CQE is: e names the request.
func (r *Ring) Completing(e *Event) { r.cqe = *e }

// CompletionWritten notes the CQE that Completing spoke of. wanted: Signalled follows.
func (r *Ring) CompletionWritten(cqn uint32, status uint8, wanted bool) {
	e := r.cqe
	if e.Kind == 0 {
		return
	}
	r.cqe = Event{}
	e.Extra, e.Status = cqn, status
	if wanted {
		e.Flags |= Wanted
	}
	r.Add(&e)
}

// Arrived notes a packet of the peer that came at a time of Now and is open now.
func (r *Ring) Arrived(came int64, e *Event) {
	e.Kind, e.At = Received, came
	r.put(e)
	e.Kind = Opened
	r.Add(e)
}

// Take moves the events since the last Take to the end of list, and says how many were pushed out
// meanwhile.
func (r *Ring) Take(list []Event) (_ []Event, lost uint64) {
	for ; r.taken != r.added; r.taken++ {
		list = append(list, r.events[r.taken&uint64(len(r.events)-1)])
	}
	lost, r.lost = r.lost, 0
	return list, lost
}

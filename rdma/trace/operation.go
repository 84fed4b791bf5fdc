package trace

import (
	"cmp"
	"fmt"
	"slices"
)

// Step is a place on a request's way, of which an Operation knows the time.
type Step uint8

// Steps. What comes between two of them is in doc.go.
const (
	StepDoorbell Step = iota
	StepRead
	StepIssued
	StepReceived
	StepOpened
	StepDelivered
	StepScheduled
	StepSealed
	StepLastSealed // of a request of several packets, or that was sent again
	StepAcked      // the last packet
	StepCompleted
	StepEvent
	NumSteps
)

var stepNames = [NumSteps]string{
	"doorbell", "wqe_read", "issued", "received", "opened", "delivered", "scheduled", "sealed", "last_sealed", "acked", "cqe_written", "event",
}

func (s Step) String() string { return stepNames[s] }

// Operation is one request as one side saw it.
type Operation struct {
	Responder bool
	Loopback  bool
	Found     bool // the entry was found without a doorbell
	QPN       uint32
	Conn      uint32 // responder: connection identifier
	Index     uint32 // of the WQE; responder: RSN
	WRID      uint64 // requester
	Wire      uint8  // number of the wire that it went over
	Op        uint8  // the ABI's opcode; responder: the wire's
	Length    uint32 // bytes of the message; responder: of the packet
	Packets   int    // sent, of request or response; 1 for a packet of the peer
	Again     int    // of those, or of the peer's, sent again
	Status    uint8  // of the completion
	At        [NumSteps]int64

	next    uint32 // sequence number of the next packet
	psn     uint32
	data    bool // window of psn
	pull    bool // a response follows
	wantCQE bool
	wantEvt bool
	over    bool
	owed    bool // an acknowledgement
	gone    bool // was sent, and is not acknowledged
}

// Mark is a step of an operation and its time.
type Mark struct {
	Step Step
	At   int64
}

// Marks are the steps that were seen, in the order of time. Of those at the same time the one that
// causes the other is first.
func (o *Operation) Marks() []Mark {
	var list []Mark
	for s, at := range o.At {
		if at != 0 {
			list = append(list, Mark{Step(s), at})
		}
	}
	slices.SortStableFunc(list, func(a, b Mark) int {
		if c := cmp.Compare(a.At, b.At); c != 0 || !o.Responder {
			return c
		}
		return cmp.Compare(rank(a.Step), rank(b.Step))
	})
	return list
}

// rank puts a responder's acknowledgement behind what it delivered.
func rank(s Step) Step {
	if s == StepAcked {
		return NumSteps
	}
	return s
}

// mark notes the first time of a step.
func (o *Operation) mark(s Step, at int64) {
	if o.At[s] == 0 {
		o.At[s] = at
	}
}

// Whole reports whether nothing of the operation is still to come.
func (o *Operation) Whole() bool {
	switch {
	case o.wantEvt:
		return false
	case o.Responder:
		return (o.gone || o.At[StepAcked] != 0) && (!o.wantCQE || o.At[StepCompleted] != 0)
	}
	return o.over && (!o.owed || o.gone || o.At[StepAcked] != 0)
}

// Wire is a kind of transport, as traces show it.
type Wire struct {
	Name   string                       // for operators
	Opcode func(op uint8) (name string) // of a packet of the peer; "" if there is none
	Conns  bool                         // its connections have identifiers, and their packets RSNs
}

// wires holds the known wires. Number 0 is that of events that concern no wire.
var wires = []*Wire{{Name: "none"}}

// AddWire makes a wire known and returns the number that its events have. It is called while the
// program initialises.
func AddWire(w *Wire) (number uint8) {
	wires = append(wires, w)
	return uint8(len(wires) - 1)
}

// Over returns the wire that the operation went over.
func (o *Operation) Over() *Wire { return wires[o.Wire] }

// PacketName returns the name of the packet of the peer that a responder's operation is.
func (o *Operation) PacketName() string {
	if of := o.Over().Opcode; of != nil {
		if name := of(o.Op); name != "" {
			return name
		}
	}
	return fmt.Sprintf("opcode %#x", o.Op)
}

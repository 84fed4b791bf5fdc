package trace

import "fmt"

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

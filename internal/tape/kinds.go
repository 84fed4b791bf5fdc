package tape

import (
	"fmt"
	"math/bits"
)

// Kind is the kind of an entry.
type Kind uint8

// Kinds of entries: events, and what an owner asked for while it handled one. New kinds go to the end
// of their group; a kind that changes its values is a new version of the format.
const (
	Step     Kind = 0x01 + iota // a Step: time, queue, frames, bells, frames of ports
	StepEnd                     // sums of what went out
	Flush                       // before the thread sleeps: time, queue
	InboxEnd                    // end of the requests and orders of a Step
	Secret                      // keys of memory are random
	Deliver                     // the ports were given their frames
	Where                       // Steps before this chunk, and the time of the last
	Torn                        // what follows ends anywhere in a Step, with its program
)

// Events of drivers.
const (
	Attach  Kind = 0x10 + iota // a driver has got a function
	Leave                      // it has left
	Listen                     // its window's bell and event queues are in use
	Window                     // its window's event queues are
	Request                    // of its control channel
)

// Orders of the core, of operators, and of those who make ports.
const (
	Order    Kind = 0x20 + iota
	Answer        // to a question about another function
	VFAnswer      // of a VF, to its PF
	Routes        // a change of the routes of plain IP
	View          // a change by an operator
	PortChange
	PortAdd
	PortLost
	PortSync
)

// Answers to what the owner asks while it handles an event.
const (
	Functions    Kind = 0x40 + iota // settings of functions, at the beginning
	Knows                           // whether an address is known
	Random                          // a random number
	Untaken                         // events that a driver has not taken
	Opened                          // a packet of a peer, without its seal
	Checked                         // whether its connection accepts it
	PortUSO                         // whether a port takes frames of UDP
	PortTakes                       // whether a port takes frames that stand for many
	PortWrote                       // whether a port took a frame
	PacketShard                     // the shard that a sealed packet is for
	Taken                           // a frame of another shard, or that there is none
	Given                           // whether another shard has room for a frame
	Sound                           // whether the checksums of a packet are right
	Pool                            // what a pool of credits, which the shards share, says
	StreamEvent                     // what TCP tells, and the bytes of a stream, or that it tells nothing
	StreamPacket                    // a packet of TCP, or that there is none
	StreamWaits                     // whether there may be one
	Epoch                           // the number of a function's period in service
)

// Guest memory.
const (
	MemRead Kind = 0x60 + iota
	MemWrite
	MemLoad
	MemStore
	MemSwap
	MemAdd
	MemHas
	MemRange
	BellTake
	BellArm
	AreaRead
	AreaWrite
	AreaLoad
)

var names = map[Kind]string{
	Step: "Step", StepEnd: "end of Step", Flush: "Flush", InboxEnd: "end of the inbox", Secret: "secret", Deliver: "frames delivered to ports", Where: "beginning of a chunk", Torn: "Step that is not whole",
	Attach: "driver attached", Leave: "driver left", Listen: "window in use", Window: "event queues in use", Request: "request of a driver",
	Order: "order of the core", Answer: "answer of the core", VFAnswer: "what a VF is", Routes: "change of routes", View: "operator's change",
	PortChange: "ports compared with settings", PortAdd: "port added", PortLost: "port lost", PortSync: "ports follow settings",
	Functions: "settings of functions", Knows: "is the address known", Random: "random number", Untaken: "events not taken",
	Opened: "packet opened", Checked: "packet checked", PortUSO: "port takes USO", PortTakes: "port takes offload", PortWrote: "port took the frame",
	PacketShard: "shard of a packet", Taken: "frame of another shard", Given: "another shard has room", Sound: "checksums are right", Pool: "pool of credits",
	StreamEvent: "event of TCP", StreamPacket: "packet of TCP", StreamWaits: "TCP has packets", Epoch: "epoch of a function",
	MemRead: "memory read", MemWrite: "memory written", MemLoad: "word loaded", MemStore: "word stored", MemSwap: "compare and swap", MemAdd: "fetch and add",
	MemHas: "memory mapped", MemRange: "mapped range", BellTake: "doorbell records", BellArm: "bell armed",
	AreaRead: "window read", AreaWrite: "window written", AreaLoad: "window word loaded",
}

// values says what follows a kind of entry that is not read by who knows more of it: u a number, b bytes
// behind their number, p a part, l parts up to an empty one, s sums. After e, the text of an error, and o, the
// outcome of an access to guest memory, the rest is there only if all was well; after z, a number, if it is not 0.
var values = map[Kind]string{
	StepEnd: "s", InboxEnd: "", Secret: "", Deliver: "", PortChange: "", PortSync: "", PortAdd: "uu", PortLost: "u",
	Knows: "u", Random: "u", Untaken: "u", Checked: "u", PortUSO: "u", PortTakes: "u", PortWrote: "u", PacketShard: "u", Given: "u", Sound: "u", Pool: "u",
	MemRead: "op", MemWrite: "o", MemLoad: "ou", MemStore: "o", MemSwap: "ou", MemAdd: "ou", MemHas: "u", MemRange: "u",
	StreamEvent: "zuububbuul", StreamPacket: "zuuuup", StreamWaits: "u", Epoch: "u",
	BellTake: "be", BellArm: "ue", AreaRead: "ep", AreaWrite: "e", AreaLoad: "ue",
}

// Pass reads over the values of an entry, for somebody who only reads what is on the tape.
func (t *Tape) Pass(k Kind) {
	list, known := values[k]
	if !known {
		t.Differs("the recording has %q where something else is expected", k)
	}
	for _, v := range list {
		switch v {
		case 'u':
			t.Uint()
		case 'b':
			t.Bytes()
		case 'p':
			t.part()
		case 'l':
			for size, _ := t.part(); size > 0; {
				size, _ = t.part()
			}
		case 'z':
			if t.Uint() == 0 {
				return
			}
		case 'e':
			if t.Text() != "" {
				return
			}
		case 'o':
			if t.Uint() != 0 {
				t.Uint()
				t.Uint()
				return
			}
		case 's':
			t.bytes(4 * uint64(bits.OnesCount64(t.Uint())))
		}
	}
}

// String names the kind, for people.
func (k Kind) String() string {
	if s, ok := names[k]; ok {
		return s
	}
	return fmt.Sprintf("unknown entry %#x", uint8(k))
}

// Class is a class of output, which is summed by itself.
type Class uint8

// Classes of output.
const (
	Frames   Class = iota // for the uplink, before they are sealed, and what is in front of them
	Writes                // to guest memory: requests of peers, completions, rings
	Messages              // to drivers: events, replies
	Ports                 // frames for ports
	Core                  // requests to the core
	Reads                 // where guest memory was read
	Shards                // frames for other shards
	Streams               // what TCP is told, and headers on streams
	classes
)

// String names the class, for people.
func (c Class) String() string {
	return [...]string{"frames for the uplink", "writes to guest memory", "messages to drivers", "frames for ports", "requests to the core", "places read in guest memory", "frames for other shards", "what TCP is told", "?"}[min(c, classes)]
}

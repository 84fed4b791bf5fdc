package tcp

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// gVisor leaves the segments that arrive for an endpoint to its goroutines. On a busy machine a goroutine may
// wait milliseconds until it runs, and a fault there could not be contained (fault.go). So an endpoint is held
// while a packet is delivered, and then the shard does what the goroutine would do (processor.start in
// dispatcher.go of gVisor). These are the functions that it calls. gVisor exports none that handles segments:
// letting an endpoint go wakes the goroutine, and HandlePacket is only for other protocols. If another version
// of gVisor lacks one of these functions, nothing links ("relocation target … not defined"). If one takes or
// does something else, connections hang, or worse: TestGVisorIsWhatWasRead says so.

//go:linkname handleConnected gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleConnected
func handleConnected(*tcp.Endpoint)

//go:linkname handleConnecting gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleConnecting
func handleConnecting(*tcp.Endpoint)

//go:linkname handleListen gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleListen
func handleListen(*tcp.Endpoint)

//go:linkname handleTimeWait gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleTimeWait
func handleTimeWait(*tcp.Endpoint)

// endpoint returns the endpoint that gets the segments of a flow; nil: none.
func (s *Stack) endpoint(f *function, id stack.TransportEndpointID) *tcp.Endpoint {
	ep, _ := s.net.FindTransportEndpoint(f.protocol(), tcp.ProtocolNumber, id, f.nic()).(*tcp.Endpoint)
	return ep
}

// held is a connected endpoint with segments that it has not handled yet, so that segments that arrive one
// after the other have one acknowledgement.
type held struct {
	ep       *tcp.Endpoint
	segments int
}

// maxHeld is how many segments may be held. gVisor handles at most 100, and leaves the rest to its
// goroutine.
const maxHeld = 64

// handle has gVisor handle a packet of a flow. A plain one may wait until a packet of another flow comes, or
// letGo is called.
func (s *Stack) handle(f *function, id stack.TransportEndpointID, pkt *stack.PacketBuffer, plain bool) {
	ep, h := s.endpoint(f, id), &s.held
	if ep == nil || ep != h.ep {
		s.letGo()
	}
	if ep == nil { // gVisor answers it with a reset
		f.dispatcher.DeliverNetworkPacket(f.protocol(), pkt)
		return
	}
	if h.ep == nil {
		ep.LockUser() // so that no goroutine is woken
		h.ep = ep
	}
	f.dispatcher.DeliverNetworkPacket(f.protocol(), pkt)
	h.segments++
	established := tcp.EndpointState(ep.State()) == tcp.StateEstablished
	if established && plain && h.segments < maxHeld {
		return
	}
	if s.letGo(); established {
		return
	}
	if next := s.endpoint(f, id); next != nil { // it is connected now, or gave the segment to another one
		next.LockUser()
		process(next)
	}
	if l := f.listeners[id.LocalPort]; l != nil { // others may be called in the same Step, and have room in its backlog
		l.accept()
	}
}

// letGo handles the segments of the endpoint that is held.
func (s *Stack) letGo() {
	if ep := s.held.ep; ep != nil {
		s.held = held{}
		process(ep)
	}
}

// process handles the segments that arrived for an endpoint that the shard holds, and lets it go. To let it go
// first would wake the goroutine: it stays the user's, with its lock left to gVisor.
func process(ep *tcp.Endpoint) {
	ep.ResumeWork()
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateListen:
		handleListen(ep)
	case tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
		handleConnecting(ep)
	case tcp.StateTimeWait:
		handleTimeWait(ep)
	default:
		handleConnected(ep) // which leaves those alone that are not
	}
	ep.StopWork()
	ep.UnlockUser() // which wakes the goroutine for what is left
}

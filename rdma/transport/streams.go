package transport

// Streams is a wire whose connections are streams of bytes, like TCP's. The owner of the streams
// makes and ends them, and moves their bytes. What is passed as owner is for its use.
//
//	Begin       ─▶ StreamEstablished ──────────────┐
//	BeginAnswer ─▶ StreamRequested ─▶ Stream.Accept ┴─▶ Attach ─▶ StreamFinish ─▶ StreamGone
type Streams interface {
	Driven
	// UseRandom sets the seed of what peers must not guess. It is called before there are streams.
	UseRandom(seed [32]byte)
	// Begin makes the end that opened a stream whose segments carry mss bytes, and BeginAnswer the
	// end that was called.
	Begin(now Time, mss int, s *StreamSettings, owner any) Stream
	BeginAnswer(now Time, mss int, owner any) Stream
	// Write writes bytes of the stream whose turn it is to b, and returns their number and the
	// stream's owner; 0: there are none. b has room for 64 KiB.
	Write(now Time, b []byte) (n int, owner any)
	// NextEvent returns the next event and its stream's owner; ok is false if there is none.
	NextEvent() (owner any, what StreamEvent, ok bool)
	// Count adds to the counters of ports.
	Count(to *PortStats)
}

// StreamEvent is something that the owner of a stream must know.
type StreamEvent uint8

// Events of streams.
const (
	// StreamRequested: the peer asks for a connection, as Stream.Peer says. Accept or Reject answers.
	StreamRequested StreamEvent = iota + 1
	// StreamEstablished: the peer has accepted, as Stream.Peer says. A queue pair may be attached.
	StreamEstablished
	// StreamRejected: the peer has rejected; Stream.Peer has its private data. StreamGone follows.
	StreamRejected
	// StreamFinish: this end has written its last byte. The stream's sending side is to be closed
	// behind it; what comes in is still to be received.
	StreamFinish
	// StreamGone: the connection is over, as Stream.Ending says. It is the last event.
	StreamGone
)

// StreamSettings is what an end says of itself when a connection begins.
type StreamSettings struct {
	Revision uint8 // of the protocol; 0: the newest, or the peer's
	CRC      bool  // what is sent has checksums if either end wants them
	// IRD and ORD say how many READs and atomics the end serves at a time, and how many it wants to
	// have under way; 0x3fff where the peer leaves it to programs.
	IRD, ORD int
	Private  []byte
}

// Stream is one end of a connection.
type Stream interface {
	Conn
	// Peer returns what the peer says, from StreamRequested, StreamEstablished or StreamRejected on.
	Peer() *StreamSettings
	// ORD returns the agreed number of READs and atomics under way, MTU the data bytes that a packet
	// can carry.
	ORD() int
	MTU() int
	// Accept and Reject answer StreamRequested.
	Accept(now Time, s *StreamSettings)
	Reject(now Time, private []byte)
	// Receive takes bytes of the peer and returns how many it took; the others are to be offered
	// again. PeerClosed says that there are no more, Lost that the stream is gone.
	Receive(now Time, b []byte) (n int)
	PeerClosed(now Time)
	Lost(now Time, why string)
	// Room says how many bytes may be written, Acknowledged how many of all the peer has.
	Room(n int)
	Acknowledged(now Time, total uint64)
	// Ending says why the connection is over, and whether the stream is to be reset.
	Ending() (why string, reset bool)
}

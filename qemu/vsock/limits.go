package vsock

import "time"

// Limits of one Transport. They are constants of this implementation, not settings: a peer sees
// bufAlloc as the credit of a flow.
const (
	bufAlloc     = 256 << 10       // receive buffer per flow, as in Linux
	sendBuf      = 64 << 10        // send buffer per flow
	maxPayload   = 64 << 10        // largest payload of a packet that is sent
	maxFlows     = 256             // per peer, including closing ones
	maxBacklog   = 64              // connections waiting for Accept per listener
	maxReplies   = 256             // resets waiting for room in the link
	closeTimeout = 8 * time.Second // how long a closed flow waits for its peer, as in Linux
)

// Local ports for flows that this end opens. They are used in ascending order, and are far from the
// ports that services listen on.
const (
	firstPort = 1 << 30
	endPort   = 1 << 31 // the first port behind the range
)

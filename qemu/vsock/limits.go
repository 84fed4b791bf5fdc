package vsock

import "time"

// Limits of one Transport. They are protocol facts of this implementation, not
// settings: a peer sees bufAlloc as the credit of a flow.
const (
	bufAlloc     = 256 << 10       // receive buffer per flow, what Linux uses too
	sendBuf      = 64 << 10        // bytes a Write may leave behind per flow
	maxPayload   = 64 << 10        // payload of one packet we send
	maxFlows     = 256             // per peer, including closing ones
	maxBacklog   = 64              // connections waiting for Accept per listener
	maxReplies   = 256             // resets waiting for room in the link
	closeTimeout = 8 * time.Second // how long a closed flow waits for its peer, as in Linux
)

// Local ports of flows that this end opens, one after the other: far from those that services
// listen on.
const (
	firstPort = 1 << 30
	endPort   = 1 << 31 // the first that is not one
)

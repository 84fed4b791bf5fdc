package tcp

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// handleConnected handles the segments that wait at a connected endpoint, if nobody else does. It is gVisor's
// own, which its goroutines for segments call. On a busy machine it takes them milliseconds to run; and a fault
// there could not be contained (fault.go).
//
//go:linkname handleConnected gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleConnected
func handleConnected(*tcp.Endpoint)

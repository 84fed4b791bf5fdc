// Package control lets a user's commands query and change a running NIC: HTTP and JSON on a unix
// socket.
//
//	vnic show … ─ Client ─▶ unix socket (0600) ─ Server ─▶ Provider (the NIC)
//	curl --unix-socket /run/vnic/h1.sock http://vnic/v1/counters
//
//	GET /v1/nic          NIC
//	GET /v1/peers        list of Peer
//	GET /v1/directory    Directory
//	GET /v1/functions    list of Function
//	GET /v1/connections  list of Connection
//	GET /v1/counters     Counters
//	GET /v1/credits      list of CreditNode
//	GET /v1/qps          list of QP
//	GET /v1/queues       list of Queue
//	GET /v1/keys         list of Key
//	GET /v1/violations   list of Violation
//	GET /v1/routes       list of Route
//	GET /v1/faults       list of Fault
//	GET /v1/capture      pcapng, until the client disconnects (?mode=both&port=any)
//	GET /v1/recording    what the NIC's recorder has (docs/record.md)
//	GET /v1/trace        TraceLines, one JSON object each, likewise (?function=pf0.vf1&qp=0x11&for=5s)
//
//	POST /v1/functions/change   FunctionChange ▶ Function
//	POST /v1/peers/change       PeerChange ▶ list of Peer
//	POST /v1/reload             empty ▶ Reloaded
//	POST /v1/recording/start    RecordingStart ▶ NIC, as it is before a new worker records
//	POST /v1/recording/stop     empty ▶ Recorded
//	POST /v1/violations/clear   empty ▶ list of Violation: those that were cleared
//	POST /v1/keys/rotate        empty ▶ Rotation
//	POST /v1/inject/link        LinkChange ▶ Uplink
//	POST /v1/inject/fault       FaultChange ▶ list of Fault
//
// An error has an HTTP status and the body {"error": "…"}. No answer contains a key. Anyone who can
// open the socket can read and change all of this, so only its owner can.
//
// # Ownership and concurrency
//
// Server and Client may be used from any goroutine. Close of the Server waits a short time for
// requests in progress, and removes the socket.
package control

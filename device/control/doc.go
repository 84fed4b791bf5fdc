// Package control lets a user's commands ask a running NIC what it is doing:
// HTTP and JSON on a unix socket.
//
//	vnic show … ─ Client ─▶ unix socket (0600) ─ Server ─▶ Provider (the NIC)
//	curl --unix-socket /run/vnic/h1.sock http://vnic/v1/counters
//
//	GET /v1/nic          NIC
//	GET /v1/functions    list of Function
//	GET /v1/connections  list of Connection
//	GET /v1/counters     Counters
//	GET /v1/credits      list of CreditNode
//	GET /v1/qps          list of QP
//	GET /v1/queues       list of Queue
//	GET /v1/keys         list of Key
//
//	GET /v1/violations   list of Violation
//	GET /v1/routes       list of Route
//	GET /v1/capture      pcapng, until the client goes away (?mode=both&port=any)
//	GET /v1/trace        TraceLines, one JSON object each, likewise (?function=pf0.vf1&qp=0x11&for=5s)
//
//	POST /v1/functions/change   FunctionChange ▶ Function
//	POST /v1/violations/clear   empty ▶ list of Violation, that are forgotten now
//
// An error has an HTTP status and the body {"error": "…"}. No answer holds a
// key. Whoever may open the socket may read all of it, so only its owner may.
//
// # Ownership and concurrency
//
// Server and Client may be used from any goroutine. Close of the Server waits
// for requests being answered, for a short time, and removes the socket.
package control

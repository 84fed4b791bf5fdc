// Package web serves a page that shows a running NIC.
//
//	browser ◀─ page/ (embedded: HTML, CSS, JavaScript, no build step)
//	   │
//	   ├─ GET /events   ─▶ watch ─▶ Source   a state every second or more: server-sent events
//	   ├─ GET /trace    ─▶ Source            timelines of one function's requests, for some seconds
//	   └─ GET /capture  ─▶ Source            sealed packets as pcapng, for some seconds
//
// The page can change nothing: Source has no method that does. It asks nobody who they are, so
// nothing that it shows is secret: no keys, and captures are sealed. Browsers run pages of other
// sites on the same machine, so every request must name this server by a known name, and must not
// come from another origin (guard).
//
// # Bounds
//
// All streams show the same samples of the NIC, taken while somebody looks: at most one a second,
// and fewer if taking or sending them is much work (watch.pause). Thus a large number of functions
// slows down the page, and not the NIC. There are at most maxStreams streams, one trace and one
// capture at a time, and traces and captures end at their limits of time and bytes.
//
// # Ownership and concurrency
//
// A Server owns its listener. Requests are served on goroutines of net/http, which share the watch.
package web

// Package local carries RDMA inside one NIC: between two functions, between two queue pairs of one
// function, or from a queue pair to itself. It takes the place of Falcon. A Conn carries Falcon's
// transactions (rof.Pipe) with the same credits, so the layers above, and the packets in
// captures, are the same as for a connection to another NIC. Only the network is missing: nothing
// is lost, sealed or reordered.
//
//	Push, Pull ─▶ queue ─▶ deliver: fill ─▶ peer handles ─▶ answer ─▶ done
//	                ▲                                         │
//	                └── again after the RNR timeout ◀── not ready
//
// Transactions wait in their connection's queue. Run delivers them, one of each connection in turn.
// A delivery is one step: the answer comes at once, and order is always kept. Credits are those of
// Falcon §8.2.3, taken when a transaction is issued and returned when it is done.
//
// An Engine and its connections belong to one goroutine. No end gets an event from within its own
// calls.
package local

// Package local carries RDMA inside one NIC: between two functions, between two queue pairs of one,
// or from one to itself. It stands where Falcon stands for connections with other NICs: a Conn
// takes and answers Falcon's transactions (rof.Carrier), with the same credits, so that everything
// above it, the packets that captures show included, is what it would be on the way to another NIC.
// What it leaves out is the network: nothing is lost, sealed or reordered.
//
//	Push, Pull ─▶ queue ─▶ deliver: fill ─▶ peer handles ─▶ answer ─▶ done
//	                ▲                                         │
//	                └── again after the RNR timeout ◀── not ready
//
// Transactions wait in their connection's queue; Run carries them over, one of each connection in
// its turn, each in one go, so that its answer comes at once and order is always kept. Credits are
// those of Falcon §8.2.3, taken when a transaction is issued and returned when it is done.
//
// An Engine and its connections belong to one goroutine. The ends of a connection are told nothing
// from within their own calls.
package local

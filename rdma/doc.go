// Package rdma is the RDMA engine of one shard. It carries out verbs for the functions of the
// shard, sends over its wires (wires.go) and schedules the functions. Each function has its own
// objects (package verbs).
//
//	driver ─ WQE, doorbell ─▶ verbs.QP ─ has work ─▶ its Function's turn (sched.go) ─ Issue ─▶ wire
//	                             ▲                                                              │
//	                             └────────────── Gather, Place, Complete, Done ─────────────────┘
//
// Package verbs draws the life of a request.
//
// A Function is the part of the engine that its driver sees: objects, doorbells, queue pairs.
// Functions share the engine by deficit round robin (sched.go). Package transport defines what a
// queue pair needs of a connection. The device opens connections on a wire, which it finds with
// Wire, and assigns them to queue pairs and links.
//
// A queue pair of the datagram service needs no connection: each work request names an address
// handle, and its datagrams go over a link of package rof or over RoCEv2 (destinations.go).
//
// # Trust
//
// What a guest does wrong fails its own queue pair or queue (package verbs); an invalid packet
// fails the connection that it came on. Neither affects other functions.
//
// # Ownership and time
//
// An Engine and everything made from it belong to one goroutine, the shard's. There are no locks.
// A wire calls its endpoints while it handles what arrived or makes a packet (package transport),
// and the Notifier only appends to queues. Time is an argument. No operation allocates memory.
// Poll examines a bounded number of send queues that became empty a short while ago, and Arm
// requests doorbells before the shard parks. Run gives turns round robin to the QPs that have
// work. A QP that waits for credit, a window, a fence or a receive is in no queue until an event
// frees it.
package rdma

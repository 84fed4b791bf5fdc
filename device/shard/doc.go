// Package shard implements one thread's part of a NIC: functions with all their objects,
// connections, keys and ports, and the engines that carry their packets, driven by Step(now, in,
// out).
//
//	guests                      ┌────────────────────────── Shard ───────────────────────────┐
//	 guest.Stream ──▶ mailbox ─┐│ registers · admin commands · doorbells                     │
//	                           ├┤ inbox                                                      │
//	  core, operators ─▶ call ─┘│   rdma ◀────────▶ falcon ◀────▶ conn.Slot                  │
//	                            │     ▲                  ▲          open, seal (security)    │
//	 ports (device/ports) ◀───▶ │ guest memory        timers       underlay ◀──▶ tx queue    │
//	                            │ gateway ◀────────▶ keys of peer and tenant                 │
//	                            └───────┬──────────────────────────────────────────┬─────────┘
//	 guest.Stream ◀── effects ◀─────────┘                 uplink ◀▶ device/thread ◀┘
//
// A shard is made of parts. Each has its own state, and is given those of the parts below it that
// it uses:
//
//	Shard           New, Step, Flush; attach.go, core.go (the core's orders), ports.go (the ports' devices)
//	 ├ receiver     a packet's way in                     ├ sender     a packet's way out
//	 ├ functionSet  the functions, their settings and those of their ports; vf.go serves a VF to its PF
//	 ├ falconWire   Falcon with its connections (device/conn), and RDMA over it
//	 ├ networks     the other wires, carried by the gateway (RoCEv2, iWARP); streams: those over TCP
//	 ├ plainIP      the gateway and the ports; plainOut sends what the gateway has for peers
//	 ├ probes       of the paths to peers: sent and answered (device/pathmtu); peers.go: where peers are
//	 ├ others       the NIC's other shards: what is handed to them and taken from them
//	 └ uplink       underlay and tx queue
//
// Beside them, captures get copies of traffic (capture.go), the tracer feeds timelines of requests
// (trace.go), and a tape records what comes from outside (tape.go), so that a Player can make a shard
// do it all again (play.go). Drivers' requests are handled in device/guest; connections are agreed on,
// found and ended in device/conn, and falcon.go gives them the keys of device/security. View shows a
// shard to operators, by subject, through device/controller (view.go, faults.go).
//
// While the thread is awake, it polls send rings in guest memory (rdma.Engine.Poll) and the rings
// of doorbell records in guests' shared memory (guest.Bells). Before it sleeps it arms them, so
// that a doorbell through the inbox or a guest's eventfd ends the ppoll.
//
// # Ownership and concurrency
//
// A Shard belongs to one goroutine: the caller of Step. Step reads no clock and does no I/O, so
// whole NICs run in virtual time under a seed (shard_test.go); I/O that it needs is left as
// effects. device/thread, around it, reads and writes the uplink, reads the clock, runs the
// effects, and sleeps.
//
// Everything else enters through the inbox, except the doorbell records in shared memory, of which
// each Step takes a bounded number. A source (a session's mailbox, the core's orders, a call) is in
// the inbox at most once, so nobody outside can make the inbox grow. Session mailboxes are bounded:
// a full one makes its sender wait. Events for guests wait in their control channels, which are
// bounded too: completion events are a set, asynchronous events are merged and a driver that is
// behind gets no further connections (guest.EventStore), and replies are bounded by the requests
// that are taken.
//
// # Trust
//
// The shard does not trust guests. What they send is parsed by device/guest, queues and rdma; an
// error stops their own function (pfvf's ERROR, with a reason in RegFault, the FunctionFault event
// and the control API) and nothing else. A packet reaches a connection only after it was
// authenticated, came with that connection's SPI, cookie and addresses, and is not older than the
// replay margin (Falcon §9.2.2.2, §9.2.2.3). Each drop has a counter.
//
// References: Falcon Transport Protocol §7.1 (encapsulation), §9.2.2 (receive checks); docs/wire.md
// (this project's choices); docs/abi (registers, commands, control stream).
package shard

// Package shard is one thread's worth of a NIC: functions with all their objects, connections, keys
// and ports, and the engines that carry their packets, in Step(now, in, out).
//
//	guests                      ┌────────────────────────── Shard ───────────────────────────┐
//	 guest.Stream ──▶ mailbox ─┐│ registers · admin commands · doorbells (registers, admin)  │
//	                           ├┤ inbox                                                      │
//	 peers, operators ─▶ call ─┘│   rdma ◀────────▶ falcon ◀────▶ conn.Slot                  │
//	                            │     ▲                  ▲          open, seal (security)    │
//	 ports (device/ports) ◀───▶ │ guest memory        timers       underlay ◀──▶ tx queue    │
//	                            │ gateway ◀────────▶ keys of peer and tenant                 │
//	                            └───────┬──────────────────────────────────────────┬─────────┘
//	 guest.Stream ◀── effects ◀─────────┘                 uplink ◀▶ device/thread ◀┘
//
// A shard is made of parts, each with its own state, which stand on those below them:
//
//	Shard           New, Step, Flush; attach.go, orders.go (of the core), ports.go (for who has devices)
//	 ├ receiver     a packet's way in                     ├ sender     a packet's way out
//	 │                                                    ├ roceWire   RoCEv2, by the gateway
//	 │                                                    └ plainOut   what the gateway sends to peers
//	 ├ plainIP      the gateway, and what functions' ports are set to
//	 ├ functionSet  what functions there are; function.go is one of them for its driver's side,
//	 │              settings.go how they change, vfcommands.go and seenvf.go a VF for its PF
//	 ├ others       the NIC's other shards: what is handed to them and taken from them
//	 ├ falconWire   the transport and its connections (device/conn)
//	 └ uplink       underlay, tx queue and captures
//
// What a driver asks is in device/guest; connections are agreed on, found and ended in device/conn;
// keys.go joins device/security to them. View (inspect.go, snapshot.go and others) is how operators
// see a shard, by way of device/controller. Captures are fed by capture.go, timelines of requests
// by trace.go.
//
// Send rings in guest memory are polled while the thread is awake (rdma.Engine.Poll), and so are
// the rings of doorbell records that guests have in shared memory (guest.Bells); before it parks it
// arms them, so that a doorbell record comes in through the inbox or a guest's eventfd ends the
// ppoll.
//
// # Ownership and concurrency
//
// A Shard belongs to one goroutine: the caller of Step. Step reads no clock and does no I/O, so
// whole NICs run in virtual time under a seed (shard_test.go): what it wants done leaves as
// effects. Around it, device/thread reads and writes the uplink, tells the time, does the effects,
// and sleeps.
//
// Everything else enters through the inbox, except the doorbell records in shared memory, of which
// each Step takes a bounded number. A source (a session's mailbox, a peer's mailbox, a call) stands
// in it at most once and bounds what it holds, so nobody outside can make it grow; a source that is
// full makes its own sender wait. Events for guests wait in their control channels, which are
// bounded as well: completion events as a set, asynchronous events up to a limit, beyond which they
// are dropped and counted, replies by the requests taken.
//
// # Trust
//
// Guests are believed nothing: what they send is parsed by device/guest, queues and rdma, and what
// is wrong stops their own function (pfvf's ERROR, with a reason in RegFault, the FunctionFault
// event and the control API) and nothing else. Packets count for a connection only after they
// authenticated, came with that connection's SPI, cookie and addresses, and are not older than the
// replay margin (Falcon §9.2.2.2, §9.2.2.3). Each drop has a counter.
//
// References: Falcon Transport Protocol §7.1 (encapsulation), §9.2.2 (receive checks); docs/wire.md
// (this project's choices); docs/abi (registers, commands, control stream).
package shard

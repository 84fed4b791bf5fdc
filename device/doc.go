// Package device assembles one NIC and runs it: functions, guests, uplink,
// peers.
//
//	guests                         ┌────────────────── Shard (one OS thread) ─────────────────┐
//	 guest.Stream ──▶ mailbox ──┐  │ registers · admin commands · doorbells (registers, admin) │
//	                            ├─▶│ inbox                                                     │
//	peers                       │  │   rdma ◀────────▶ falcon ◀────▶ conn.Slot                 │
//	 cmlink ──────▶ peer mail ──┤  │     ▲                  ▲          psp open, seal          │
//	control API ──▶ call ───────┘  │ guest memory        cm, timers    underlay ◀──▶ tx queue  │
//	ports (TAP) ◀▶ loop ─────────▶ │ gateway ◀───────▶ keys of peer and tenant                 │
//	                               └───────┬──────────────────────────────────────────┬────────┘
//	 guest.Stream ◀── effects ◀────────────┘                          uplink (tap.Port) ◀▶ loop
//
// A packet's way in is in receive.go, its way out in transmit.go; what a driver
// asks is in device/guest; connections are agreed on, found and ended in
// device/conn, which connections.go puts together; keys.go joins device/security,
// which seals and opens, to the connection manager; the thread is device/thread.
// What functions' ports are set to is in plain.go, their devices are in ports_linux.go, and
// device/gateway carries their plain IP. Send rings in guest memory are polled while the thread is awake
// (rdma.Engine.Poll), and so are the rings of doorbell records that guests have
// in shared memory (guest.Bells); before it parks it arms them, so that a doorbell
// record comes in through the inbox or a guest's eventfd ends the ppoll. Events
// of completion queues go out by message or by an event queue and an interrupt
// (guest.EventQueues). What functions have that takes I/O, windows and ports, is fitted to
// their settings outside the shard (fitting.go); what operators set (device/settings) is handed
// to the next NIC. Operators are answered by device/controller, which sees a shard as a view
// (inspect.go, snapshot.go, operator.go, inject.go). Captures are fed by capture.go, timelines of requests by trace.go.
//
// # Ownership and concurrency
//
// A Shard owns its functions with all their objects, connections and keys, and
// belongs to one goroutine: the caller of Step. Step reads no clock and does no
// I/O, so whole NICs run in virtual time under a seed (shard_test.go): what it
// wants done leaves as effects. Around it, device/thread reads and writes the
// uplink, tells the time, does the effects, and sleeps in ppoll.
//
// Everything else enters through the inbox, except the doorbell records in shared
// memory, of which each Step takes a bounded number. A source (a session's mailbox, a
// peer's mailbox, a call) stands in it at most once and bounds what it holds,
// so nobody outside can make it grow; a source that is full makes its own
// sender wait. Events for guests wait in their control channels, which are bounded as
// well: completion events as a set, asynchronous events up to a limit, beyond
// which they are dropped and counted, replies by the requests taken.
//
// Each session has a reader and a writer goroutine. A session that ends takes
// its function through a function-level reset before the guest sees the end of
// the stream, so that no byte of its memory is touched after it.
//
// # Trust
//
// Guests are believed nothing: what they send is parsed here or by queues and
// rdma, and what is wrong stops their own function (pfvf's ERROR, with a reason
// in RegFault, the FunctionFault event and the control API) and nothing else.
// Packets count for a connection only after they authenticated, came with that
// connection's SPI, cookie and addresses, and are not older than the replay
// margin (Falcon §9.2.2.2, §9.2.2.3). Each drop has a counter.
//
// References: Falcon Transport Protocol §7.1 (encapsulation), §9.2.2 (receive
// checks); docs/wire.md (this project's choices); docs/abi (registers,
// commands, control stream).
package device

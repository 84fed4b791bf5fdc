// Package cc is the congestion control of RoCEv2: how many packets of a connection may be under
// way, and how fast they may leave.
//
//	connection ── Sent, Answered, Lost, Collapsed, Notified ──▶ Algorithm(State)
//	           ◀── State.Window, State.Rate ───────────────────────┘
//
// An algorithm is one file that registers its name. It is a pure function of the state, the event
// and the time: it has nothing of its own, and is shared by all connections. Nothing allocates.
package cc

// Package cc is the congestion control of RoCEv2: how many packets of a connection may be in
// flight, and how fast they may be sent.
//
//	connection ── Sent, Answered, Lost, Collapsed, Notified ──▶ Algorithm(State)
//	           ◀── State.Window, State.Rate ───────────────────────┘
//
// An algorithm is one file that registers its name. It is a pure function of the state, the event
// and the time. It has no state of its own and is shared by all connections. Nothing allocates.
package cc

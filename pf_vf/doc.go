// Package pfvf defines the numbers of a NIC's functions, their lifecycle and a table to find them.
//
// An ID is host 8 | PF 4 | VF 12 bits, written h1.pf0.vf2; VF 0 is the PF
// itself. It is the Destination Function of Falcon packets.
//
//	          enable          ready
//	┌─► RESET ───────► INIT ───────► READY
//	│     ▲  │           │             │
//	│     │  └──fault────┤──fault──────┤
//	│     │ reset        ▼             │
//	│     └─────────── ERROR ◄─────────┘
//	│ allow
//	└── DISABLED ◄── disable, from any state
//
// Reset leads to RESET from every state except DISABLED, which only the host can end. The first
// fault is kept until reset. Transition contains the whole table; an event that the table does not
// allow is an error and changes nothing.
//
// Nothing here reads clocks or starts goroutines. A Function and a Table belong to one goroutine,
// the shard's.
package pfvf

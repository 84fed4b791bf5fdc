// Package pfvf names the functions of a NIC, keeps their lifecycle and finds
// them.
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
// Reset leads to RESET from every state but DISABLED, which only the host
// ends. The first fault is kept until reset. Transition is the whole table;
// what it does not allow is an error and changes nothing.
//
// Nothing here reads clocks or starts goroutines. A Function and a Table
// belong to one goroutine, the shard's.
package pfvf

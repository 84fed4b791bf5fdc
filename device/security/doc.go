// Package security seals and opens packets. It is the only part of device that knows how PSP
// carries them, how many bytes that takes, and whose keys are used.
//
//	            shard: per packet                              shared              slow: keys
//	sealed ─▶ Opener.Open ─▶ Falcon class: Session.Check ◀── what is accepted ◀── Keys: issue, rotate
//	               └─▶ gateway class: Opened.Plain                                   ▲  │
//	clear  ─▶ Session.Wrap, Session.Seal ─▶ TxSA ◀───────── TxSAs.Give ◀── OutRekey  │  ▼
//	plain  ─▶ TxSA.SealPlain ───────────────┘ └── used up: RequestRekey ─▶ connection manager
//
// There are three encapsulations (docs/wire.md): Falcon in PSP's tunnel mode, with the functions'
// inner IP header; Falcon in PSP's transport mode, without it; and plain IP of ports, the gateway
// class. The class of the key that sealed a packet decides how the packet is handled; nothing in
// the packet does.
//
// # Associations
//
// Keys are separate for each Use: peer, tenant, class, and the shard that seals. Keys holds the
// keys that this NIC issues, and the rotation that replaces them while traffic flows (Falcon
// §9.2.2.3). TxSAs holds the keys that peers gave. A connection's Session refers to both, so a
// rekey changes a single object, however many connections use it.
//
// # Ownership
//
// Keys belong to one goroutine. Openers, TxSAs and Sessions each belong to a shard, and see changes
// of Keys without a lock. A transmit SA belongs to one shard, so that no nonce is used twice. All
// packets of the gateway class of one Use must come to the Opener that has their replay window;
// their SPI says which one (Opener.ShardOf). Nothing here allocates per packet.
//
// References: Falcon Transport Protocol §7.1 (encapsulation), §9.2.2 (receive checks), §9.2.2.3
// (rekey); RFC 6479 (replay window).
package security

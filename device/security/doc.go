// Package security puts packets under a seal and takes them out: it alone of device knows how PSP
// carries them, how many bytes that takes, and whose keys are used.
//
//	            shard: per packet                              shared              slow: keys
//	sealed ─▶ Opener.Open ─▶ Encap.Open ─▶ Session.Check ◀── what is accepted ◀── Keys: issue, rotate
//	               └─▶ gateway class: Opened.Plain                                   ▲  │
//	clear  ─▶ Session.Wrap, Session.Seal ─▶ TxSA ◀───────── TxSAs.Give ◀── OutRekey  │  ▼
//	plain  ─▶ TxSA.SealPlain ───────────────┘ └── used up: RequestRekey ─▶ connection manager
//
// There are three encapsulations (docs/wire.md): Falcon in PSP's tunnel mode, with the inner IP
// header of the functions; Falcon in PSP's transport mode, without; and plain IP of ports, the
// gateway class. The class of the key a packet was sealed with decides what becomes of it, nothing
// inside it does.
//
// # Associations
//
// Keys are separate for each Use: peer, tenant, class, and the shard that seals. What we issue is
// in Keys, with the rotation that replaces it while traffic flows (Falcon §9.2.2.3). What peers
// gave us is in TxSAs. A connection's Session refers to both, so a rekey changes one object,
// however many connections hang on it.
//
// # Ownership
//
// Keys belong to one goroutine. Openers, TxSAs and Sessions belong to a shard each, and need no
// lock to see what Keys change. A transmit SA is of one shard, so that no nonce is used twice.
// Packets of the gateway class of one Use must all come to one Opener, which has their replay
// window; their SPI says which (Opener.Window). Nothing here allocates per packet.
//
// References: Falcon Transport Protocol §7.1 (encapsulation), §9.2.2 (receive checks), §9.2.2.3
// (rekey); RFC 6479 (replay window).
package security

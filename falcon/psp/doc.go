// Package psp implements the PSP Security Protocol as Falcon uses it: header, key derivation,
// sealing, opening, and the acceptance checks of Falcon §9.2.2.1–9.2.2.3, which come before the
// sliding window.
//
//	send     clear bytes ─▶ TxSA.Seal: header, IV = picosecond clock, AES-GCM in place, ICV ─▶ wire
//	receive  wire ─▶ Opener.Open: SPI lookup, verify and decrypt in place ─▶ Guard.Check: PCID, SPI, replay ─▶ falcon
//	keys     RxSADB: Issue, Rotate, Retire · Association: Rekey, DropPrevious, AdvanceRemoteTime
//
// SAs of the gateway class, for plain IP, use a counter as IV. Open itself detects replays among
// their packets (ReplayWindow).
//
// Formats and cryptography follow Google's PSP architecture specification: nonce = SPI ‖ IV,
// additional data = the header and the first 4·CryptOffset bytes after its 16-byte base, key = SP
// 800-108 counter-mode KDF over AES-256-CMAC from one of two master keys chosen by the SPI's most
// significant bit.
//
// Ownership: there are no locks. Each Opener, Guard and TxSA belongs to one goroutine (a shard).
// The RxSADB and the Associations belong to one goroutine too, which may be another. Openers and
// Guards see its changes at their next packet. Open and Seal work in the caller's buffer and do not
// allocate, because the ciphers of all issued SPIs are kept ready. Master keys come from the caller
// and are never written anywhere.
package psp

package cm

// Stats counts events since New.
type Stats struct {
	Sent, Received       uint64 // messages
	SendDropped          uint64 // messages not sent since the link was down
	Malformed            uint64 // messages not understood, illegal, or before Hello
	TenantRefused        uint64 // REQ for a tenant not shared with the peer
	GIDRefused           uint64 // REQ whose GID is not of the function it names
	NoListener           uint64
	LimitRefused         uint64 // REQ refused by a limit
	CutShort             uint64 // rests that ended early, for another connection of the function
	DuplicateREQ         uint64
	BadREP               uint64 // REP with an MTU or order we did not offer
	UnknownConnection    uint64 // messages for connections not in the table
	IllegalEvents        uint64 // events without a transition
	Retries, Timeouts    uint64
	Established          uint64
	Disconnected         uint64
	PeerRestarts         uint64
	KeysReceived         uint64 // new SAs of peers, in offers and REKEY
	Rekeyed              uint64 // our new SAs that a peer confirmed
	RekeyRequests        uint64 // of peers whose SA is nearly used up
	SPIRefused           uint64 // packets of connections under an SPI that is not theirs
	RouteTenantRefused   uint64 // offers in a tenant not shared with the peer
	RouteFunctionRefused uint64 // offers of a function of another host
	RouteAddressRefused  uint64 // offers of an address that the peer may not have
	RouteConflicts       uint64 // offers of an address someone else has
}

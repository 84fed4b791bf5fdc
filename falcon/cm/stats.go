package cm

// Stats counts events since New.
type Stats struct {
	Sent, Received       uint64 // messages
	SendDropped          uint64 // messages not sent since the link was down
	Malformed            uint64 // messages malformed, illegal, or before Hello
	TenantRefused        uint64 // REQ for a tenant not shared with the peer
	GIDRefused           uint64 // REQ whose GID does not belong to the function that it names
	NoListener           uint64
	LimitRefused         uint64 // REQ refused by a limit
	CutShort             uint64 // TIME-WAITs that ended early, for another connection of the function
	DuplicateREQ         uint64
	BadREP               uint64 // REP with an MTU, shard, order or error mode that we did not offer
	UnknownConnection    uint64 // messages for connections not in the table
	IllegalEvents        uint64 // events without a transition
	Retries, Timeouts    uint64
	Established          uint64
	Disconnected         uint64
	PeerRestarts         uint64
	KeysReceived         uint64 // new SAs of peers, in offers and REKEY
	Rekeyed              uint64 // our new SAs that a peer confirmed
	RekeyRequests        uint64 // requests of peers whose SA is nearly used up
	SPIRefused           uint64 // packets of connections with a wrong SPI
	RouteTenantRefused   uint64 // offers in a tenant not shared with the peer
	RouteFunctionRefused uint64 // offers of a function of another host
	RouteAddressRefused  uint64 // offers of an address that the peer may not have
	RouteConflicts       uint64 // offers of an address that someone else has
}

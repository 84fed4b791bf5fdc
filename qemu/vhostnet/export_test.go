package vhostnet

// LedgerOf is the part of a port's ledger that a ring has.
var LedgerOf = ledgerOf

// Limits of a port, for tests at their borders.
const (
	QueueBurst = queueBurst
	MaxBuffers = maxBuffers
	MinRest    = minRest
)

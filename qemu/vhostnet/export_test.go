package vhostnet

// LedgerOf is the part of a port's ledger that a ring has.
var LedgerOf = ledgerOf

// Limits of a port, for tests at their borders.
const (
	QueueBurst = queueBurst
	MaxBuffers = maxBuffers
	MinRest    = minRest
)

// ReadWork is that of a turn.
const ReadWork = readWork

// WriteWorkLeft is what is left of a guest's turn.
func (p *Port) WriteWorkLeft() int { return int(p.writing) }

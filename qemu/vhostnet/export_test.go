package vhostnet

// LedgerOf is the part of a port's ledger that a ring has.
var LedgerOf = ledgerOf

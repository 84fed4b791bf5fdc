// Package inprocess is a control channel without a stream of bytes: the driver is in this process
// and reaches its function by calls, as the driver of a PCI function would by registers.
//
//	driver ── Put, Read, Write ──▶ guest.Session ──▶ shard
//	driver ◀── Reply, Events ── Channel ◀── shard
//
// A Channel may be used by any goroutines.
package inprocess

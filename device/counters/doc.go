// Package counters defines a NIC's counters: a table for each package that counts, with a line for
// each counter.
//
//	a package's Stats ─▶ table.Add ─▶ `vnic show counters`, control API
//	                       │
//	                       └─ Of(name) ─▶ /metrics: name, help, type, labels
//
// A counter is defined by one line in the table of its package: its name, its help text, whether it
// is a gauge, and how it is read. Counters of one kind that differ by reason, direction or port
// form a family (families.go), which is one metric with labels. docs/troubleshooting.md says what
// to do about each counter; a test of package device checks that it does.
//
// # Ownership and concurrency
//
// The tables do not change. The owner of a Stats reads it.
package counters

// Package counters is what a NIC counts: a table for each room, with a line for each counter.
//
//	room's Stats ─▶ table.Add ─▶ `vnic show counters`, control API
//	                  │
//	                  └─ Of(name) ─▶ /metrics: name, help, type, labels
//
// A counter is added in the table of its room and nowhere else: its name, its help text, whether it
// goes down too, and how it is read are one line. What there is several of, by reason, direction or
// port, is a family (families.go), which is one metric with labels. docs/troubleshooting.md says
// what to do about each; a test of device holds it to that.
//
// # Ownership and concurrency
//
// The tables do not change. Whoever owns a Stats reads it.
package counters

// Package record is vnic record: it has a running NIC record what it takes from outside, for vnic replay.
//
//	start, stop ─▶ control API ─▶ worker ─ replaced by one that records ─▶ a new file of mode 0600
//	save ─▶ control API ─ what the recorder has (nic.recorder) ─▶ a new file of mode 0600
//
// It runs on one goroutine. A file that save could not write completely is removed.
package record

// Package record is vnic record: it saves what the recorder of a running NIC has (nic.recorder), for vnic
// replay.
//
//	control API ─▶ a new file of mode 0600
//
// It runs on one goroutine. A file that is not whole is removed.
package record

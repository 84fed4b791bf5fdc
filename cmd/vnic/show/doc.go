// Package show has the commands that look at a running NIC, by its control API: vnic show (show.go,
// summary.go), top, trace (trace.go; chrome.go for a timeline in a browser) and capture. None changes
// the NIC; a trace and a capture end with their command.
package show

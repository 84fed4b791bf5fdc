// Package agent runs commands in a guest for its host, and carries files in and out: what a shell on
// the guest needs, over any stream of bytes. The stream is vsock, so the guest needs no network.
//
//	host: Run, Get, Put ── frames on a stream (vnic run's vsock socket) ──► guest: Serve
//
// A stream carries one request. It is written as JSON in the first frame; then both ends send frames
// until the guest's frame with the exit status:
//
//	host  ─► request │ stdin… │ window…          │
//	guest ─►         │ stdout… stderr…           │ exit
//
// # Ownership and concurrency
//
// Run, Get and Put use the stream alone until they return, and its owner closes it. Serve has a
// goroutine for each stream. Frames of one request may be sent by several goroutines, which a lock keeps
// whole (frame.go).
//
// # Trust
//
// The host may do anything in its guest. The guest is hostile to the host: a frame is bounded, and
// files are written below the folder that the user named (os.Root), whatever names the guest gives
// them.
package agent

// Package ports makes the devices of functions' ports and serves them for the shard's thread.
//
//	TAPs ▶ epoll ▶ Set.Read ▶ Step ▶ gateway ▶ Set.Write ▶ TAPs
//	         ▲
//	Set.Fit ─┘ opens and closes them as functions are set
//
// A Polled device may leave the ends of frames in its guest's memory. They are good until Write,
// after which the guest has its memory back.
//
// # Ownership and concurrency
//
// A Set belongs to its shard's thread, but for Fit, which any one goroutine may call at a time, and
// which has what is the thread's done there. Open and Close are called while the thread does not
// run.
package ports

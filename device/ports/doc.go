// Package ports creates the devices of functions' ports and serves them for the shard's thread.
//
//	TAPs ▶ epoll ▶ Set.Read ▶ Step ▶ gateway ▶ Set.Write ▶ TAPs
//	         ▲
//	Set.Fit ─┘ opens and closes them as settings change
//
// A Polled device may leave the ends of frames in its guest's memory. They are valid until Write;
// after that the guest may use the memory again.
//
// # Ownership and concurrency
//
// A Set belongs to its shard's thread. Only Fit may be called by another goroutine, one at a time;
// it does its part for the thread there. Open and Close are called while the thread does not run.
package ports

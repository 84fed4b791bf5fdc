// Package netns puts work into a private network namespace: nothing it does to links, bridges or
// addresses is seen by the host, and all of it disappears with the namespace.
//
// A namespace belongs to an OS thread. New moves the calling goroutine's thread and locks the
// goroutine to it for good. Child processes which that goroutine starts, and sockets and TAPs it
// opens, are in the namespace; other goroutines are not. When the goroutine ends, the Go runtime
// throws its thread away; the namespace goes with the last process, socket and TAP in it.
//
// Space is a namespace with a thread of its own, for those who need several.
package netns

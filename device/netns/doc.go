// Package netns runs code in a private network namespace: the host does not see what it does to
// links, bridges or addresses, and everything disappears with the namespace.
//
// A namespace belongs to an OS thread. New moves the calling goroutine's thread to a new namespace
// and locks the goroutine to the thread for good. Child processes that this goroutine starts, and
// sockets and TAPs that it opens, are in the namespace; other goroutines are not. When the
// goroutine ends, the Go runtime ends its thread. The namespace disappears with the last process,
// socket and TAP in it.
//
// Space is a namespace with its own thread, for code that needs several namespaces.
package netns

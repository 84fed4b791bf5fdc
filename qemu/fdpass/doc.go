// Package fdpass reads bytes together with file descriptors passed over a unix
// stream socket, and owns the descriptors until someone takes them.
package fdpass

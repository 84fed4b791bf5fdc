// Package fdpass reads bytes together with the file descriptors that were passed over a unix stream
// socket.
//
//	socket ── bytes, SCM_RIGHTS ──► FDs: ReadFull ──► Take: the caller owns it
//	                                      └── Close: those that nobody took
//
// An FDs owns the descriptors until they are taken. It belongs to one goroutine.
package fdpass

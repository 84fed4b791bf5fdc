// Package fdpass reads bytes together with the file descriptors that were passed over a unix stream
// socket. An FDs owns the descriptors until they are taken.
package fdpass

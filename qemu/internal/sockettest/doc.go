// Package sockettest makes pairs of connected Unix sockets for tests: what QEMU and a NIC have
// between them, without a path.
package sockettest

// Package sockettest makes pairs of connected unix sockets for tests, in place of the sockets
// between QEMU and a NIC.
package sockettest

// Package peer is vnic peer, which adds, changes and removes the peers of a running NIC.
package peer

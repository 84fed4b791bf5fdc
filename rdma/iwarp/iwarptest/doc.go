// Package iwarptest is the network of tests: connections of two iWARP engines on virtual streams, which
// are late and cut at random places under a seed.
package iwarptest

// Package inject is vnic inject, which makes things go wrong in a running NIC, by its control API:
// faults and profiles of functions (fault.go), and impairments of the uplink (inject.go).
package inject

// Package allocs counts allocations where goroutines of others run.
package allocs

// Package pool keeps objects that nobody uses for who needs one next.
//
//	Get ─▶ in use ─▶ Put ─▶ kept
//
// A pool belongs to one goroutine. Its size is bounded by what its users may hold at a time.
package pool

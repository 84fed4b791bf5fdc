// Package pool keeps unused objects for reuse.
//
//	Get ─▶ in use ─▶ Put ─▶ kept
//
// A pool belongs to one goroutine. Its size is limited by how many objects its users hold at a
// time.
package pool

// Package files writes files that others read: keys, certificates, lists, configurations, states.
//
//	b ─▶ temporary name in the same folder ─▶ the disk ─▶ rename
//
// Whoever reads meanwhile, and whoever is left when the machine stops, has all of the old file or all of
// the new one. Its functions keep nothing and may be called from any goroutine.
package files

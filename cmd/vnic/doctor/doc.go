// Package doctor is vnic doctor: it looks at the machine, at configurations, and at the NICs that run
// with them, and says what is wrong and what to do.
//
//	flags ─▶ look (look.go) ─▶ seen ─▶ checks (checks.go), one after the other ─▶ findings
//
// A check is one entry of a table: what it looks at, what it finds wrong, and the remedy. It reads nothing
// but what was seen, so that a test can show it anything.
//
// It changes nothing, and runs on one goroutine.
package doctor

// Package cli is what the commands of vnic share: errors of a command line and exit statuses, the
// flags and completions of commands that ask a running NIC, JSON and tables, and the log on standard
// error.
//
//	command ─▶ Arguments, NIC.SocketFlag ─▶ NIC.Client ─▶ control API of a running NIC
//	        └▶ JSON, tables ─▶ standard output          errors ─▶ ExitStatus, Stderr
//
// Nothing here has state but Stderr, which any goroutine may write to.
package cli

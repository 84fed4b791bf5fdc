// Package guestinit is PID 1 of a guest made by package image.
//
//	kernel ──► /init ARGS (PID 1) ──► mounts, hostname, modules
//	                     └──► /init ARGS (child, Environment set): stdout → ttyS1, stderr → console
//	                               └── ends ──► sync, power off
//
// The same program is both: its main function calls Run when Active says so and
// runs its normal command line otherwise. ARGS are what follows "--" on the
// kernel's command line. ttyS1 is a raw byte stream to the host; ttyS0 has the
// kernel's messages and everything the child says on stderr.
package guestinit

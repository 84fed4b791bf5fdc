// Package guestinit is PID 1 of a guest made by package image.
//
//	kernel ──► /init ARGS (PID 1) ──► mounts, hostname, modules
//	                     └──► /init ARGS (child, Environment set): stdout → ttyS1, stderr → console
//	                               └── ends ──► sync, power off
//
// Both are the same program: its main function calls Run if Active returns true, and otherwise runs
// its normal command line. ARGS follow "--" on the kernel's command line. ttyS1 is a raw byte
// stream to the host. ttyS0 has the kernel's messages and the child's standard error.
package guestinit

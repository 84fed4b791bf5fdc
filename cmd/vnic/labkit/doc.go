// Package labkit has the parts of which tests, labs and vnic demo build hosts on one machine: child
// processes (process.go), folders for sockets (rundir.go), and links between network namespaces
// (links.go). Whoever makes a part removes it; child processes die with the process that started them.
package labkit

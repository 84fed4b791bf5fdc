// Package labkit has the parts of which vnic demo and tests build hosts on one machine: child
// processes (process.go), folders for sockets (rundir.go), and links between network namespaces
// (links.go). Whoever makes a part removes it; child processes die with the process that started them.
package labkit

// Package vnictest is for tests that run the program: the program itself, built once; a lab of two
// hosts (hosts.go) whose NICs the test runs, with clients (lab.go); a NIC in the test's process (nic.go);
// guests in QEMU (guest.go) and guests that are nothing but a port (port.go).
package vnictest

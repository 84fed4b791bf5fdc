// Package labfile reads and checks the file that describes a lab: hosts with their NICs, the links
// between them, tenants, their machines, and commands that must succeed.
//
//	FILE ─► Parse ─► Lab: names, values and references are good
//
// It makes nothing and asks nothing of this machine. Its errors name the line, the path, the value and
// the remedy, all of them together, by the decoder of a NIC's configuration (package device/config).
package labfile

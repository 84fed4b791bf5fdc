// Package examples has no code: the programs are below it (see package setup), and its test builds
// them and runs each between functions of a NIC.
package examples

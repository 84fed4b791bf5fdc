// Package scenario reads experiments for package sim from YAML files like those in
// falcon/sim/scenarios.
//
// It is an edge: it reads files and shares the strict decoder and the falcon section of a NIC's
// configuration (package device/config), so that a transport is tuned in a simulation with the keys
// that tune it in a NIC. Nothing but the command line imports it.
package scenario

// Package config reads the configuration of one NIC process: one strict YAML
// file, checked as a whole before anything is opened.
//
//	bytes ── yaml ──▶ nodes ── decode ──▶ Config ── setDefaults ──▶ check ──▶ *Config
//	                             │                                    │
//	                             └────────────▶ Problems ◀────────────┘
//
// Unknown keys, values of the wrong kind and impossible combinations are
// errors. All of them are reported together, one line each, naming the line in
// the file, the path, the value and what to write instead:
//
//	line 31: functions[0].vfs[0].address: "x" is not an IPv4 address; write it as 192.168.100.11
//
// The package only reads: it opens no device and resolves no name, so that "vnic run --check=file"
// is safe anywhere. The tags of the fields say what each key means and which values it may have; the
// reference, docs/configuration.md, is generated from them.
//
// # Ownership and concurrency
//
// A Config is not changed after Load returned it and may be read from any
// goroutine.
package config

//go:generate go run ./reference ../../docs/configuration.md

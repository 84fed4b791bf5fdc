// Package schema is the one source of the guest ABI: registers, control
// messages, admin commands, queue descriptors and every code they carry,
// written as Go data with explicit little-endian byte offsets.
//
//	schema (this package) ──► gen ─┬─► queues/abi/*_gen.go       Go structs, codecs and tables
//	                               ├─► device/config, control    limits and counts of objects
//	                               ├─► docs/abi/reference.md     reference for driver writers
//	                               └─► guestlib/c/vnic_abi.h     header for drivers in C
//
// Rules for changing it:
//
//   - Offsets are explicit. A byte no field names is reserved: the writer
//     stores zero, the reader ignores it.
//   - 8-byte fields sit at multiples of 8, 4-byte fields at multiples of 4, and
//     every structure's size is a multiple of its widest field.
//   - Codes and bits are never reused.
//   - Any change of layout or value changes Hash; the tests demand a new
//     version for it. A new minor version only adds; anything else is a new
//     major version.
//
// The package has no state and no dependencies; Check validates the data.
package schema

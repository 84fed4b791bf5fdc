// Package abi is the contract between the driver in a guest and the device:
// registers, messages of the control stream, admin commands, queue
// descriptors and codes, with codecs at their exact byte offsets.
//
// The files *_gen.go are generated from queues/abi/schema, which is the one source, by queues/abi/gen;
// docs/abi/reference.md and the C header guestlib/c/vnic_abi.h come from the same run. The rules for
// using what is defined here are in docs/abi/index.md.
//
// Marshal and Unmarshal work on little-endian bytes that the caller has made
// long enough; they do not allocate and do not keep the slice. Marshal stores
// zero in reserved bytes, Unmarshal ignores them. Values are not checked
// here: whoever reads them does that when using them. Bytes that come from
// the other side and may be short go through ReadMessage and Decode.
//
// The package imports nothing of this module, keeps no state, and serves both
// sides.
package abi

//go:generate go run ./gen ../..

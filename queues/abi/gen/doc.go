// Command gen writes the files generated from the ABI schema: the Go code of queues/abi, the kinds
// of objects in device/config and device/control, the reference of docs/abi and the C header of
// guestlib/c. It is run by "go generate ./queues/abi" and takes the root of the tree as its
// argument.
package main

// Package keys is vnic keys: identities of NICs, as files with certificates (device/cmlink), and the
// keys with which a running NIC seals, by its control API.
package keys

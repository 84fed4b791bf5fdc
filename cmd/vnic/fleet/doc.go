// Package fleet is vnic fleet: hosts that find each other by etcd.
//
//	init ─▶ folder: authority, certificates of etcd and of operators ─▶ etcd: roles, authority
//	grant ─▶ grants/NAME, a user for the host, a token        watch --sign: signs for whoever has one
//	join: token ─▶ request ─▶ signed certificate
//	allow, revoke, move ─▶ grants                              hosts, functions, watch ◀─ everything
//	authority next, switch, drop ─▶ the authorities that all trust
//
// By roles etcd decides what a host may read and write. Package directory decides who has what, in each
// NIC and here alike.
//
// # Ownership and concurrency
//
// Each change of a record is a transaction on what was read before, so that two operators do not undo
// each other's work. A command runs on one goroutine; watch handles one request after the other.
package fleet

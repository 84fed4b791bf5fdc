// Package etcdtest is an etcd for tests: one member, in memory, behind etcd's own gRPC interface, so that
// what is tested is the real client. It has the guarantees that device/directory relies on, and no
// others: revisions, a list as of one of them, watches that report all changes in order or say that they
// cannot, compaction, leases. The same are modelled in device/directory's simulation; tests against
// Debian's etcd-server are in cmd/vnic/fleet.
//
// Any goroutine may call a Server. One lock guards all it has; whoever waits for a change waits for a channel
// that the change closes.
package etcdtest

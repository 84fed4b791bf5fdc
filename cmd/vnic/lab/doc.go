// Package lab is vnic lab: it makes on this machine what a file describes, and removes it.
//
//	FILE ─► labfile.Lab ─► plan: numbers, addresses, configurations ─► up (up.go)
//	                                                                    │
//	  namespaces NAME, NAME.HOST, NAME.MACHINE (network.go) ◄───────────┤
//	  NAME.HOST: vnic run -c /run/vnic/lab/NAME/HOST.yaml   ◄───────────┘
//
// With "directory: etcd" there is also NAME.etcd, with an etcd by which the NICs find each other (etcd.go).
//
// No process of its own knows a lab: each command reads the lab's file and its state from
// /run/vnic/lab/NAME (state.go), and looks at the rest. What a lab has is what is in its namespaces and
// its folder; so down (down.go) finds all of it, whoever was killed before. What NICs, guests and exec say
// goes to processes that keep the end of it (watch.go); that of a guest also notes crashes (crash.go), and
// tells a guest that has booted again what up told it.
//
// # Ownership and concurrency
//
// A command that changes a lab holds the lock on the lab's folder. The others, and the processes of
// watch.go, read files that are replaced as a whole. NICs are daemons that nobody waits for; their
// processes are found by their namespace (process.go).
package lab

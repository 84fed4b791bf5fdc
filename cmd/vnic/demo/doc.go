// Package demo is vnic demo: two NICs, two guests and a network between them, built and removed again.
//
//	demo.go ─▶ scene.go: folders, keys, network (network.go), configurations (config.go)
//	         ├▶ two vnic run, as child processes
//	         ├▶ two guests (guests.go, vm.go), or with the Linux driver (driver.go)
//	         └▶ workload ─▶ report.go
//
// Everything it makes lies in one folder, in network namespaces of its own and in child processes, and
// is removed when the command ends, however it ends.
package demo

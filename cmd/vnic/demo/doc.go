// Package demo is vnic demo: two hosts with a guest each run the whole workload, and a table says what came
// of it.
//
//	demo.go ─▶ apart.go: namespaces that end with the demo
//	         ├▶ lab.go: the lab two-guests or two-hosts, made by package lab; or
//	         │  rootless.go: two NICs over UDP on the loopback interface, for ordinary users
//	         └▶ workload in both guests ─▶ report.go
//
// # Ownership and concurrency
//
// One goroutine makes the scene, starts the workloads and takes everything down again, whatever failed.
// Each guest's output is followed by a goroutine; report has a lock for them.
package demo

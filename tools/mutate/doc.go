// Mutate makes small random changes to the program, one operator at a time, and reports those
// that the tests of their room do not notice (mutation testing): a package's own, then those of
// packages of the same top-level folder that use it. Most parts are tested where they meet: what
// rdma/verbs does, the tests of rdma ask for.
//
// A change that no test notices is a behaviour that is either untested or not needed: test it, or
// take it out. Some changes truly alter nothing (a hint to the processor's cache, a bound that two
// other checks hold already); they are listed with the reason in explained.txt.
//
//	find sites ─▶ draw n by seed ─▶ all n in one program ─▶ tests with one chosen ─▶ noticed | not
//	                                                             ▲                           │
//	                                       which test reaches it ┘         explained.txt ◀───┘ with a reason
//
// First each test is run alone, unchanged, with coverage: a change is then tried against those
// tests alone that execute it, the quickest first. What only a child process of a test executes
// counts as reached by none.
//
// All changes of a draw are compiled together. A function that has some is there once with each,
// and once without; the environment says which runs. So a package's tests are compiled and linked
// once, not once per change. A test that fails of this program without any change is left out.
//
// Packages that no program is made of, the helpers of tests, are left alone: their failures are
// what tests that pass never see.
//
// Sources are never written to: changed files reach the compiler by an overlay. A change that does
// not compile, by a check of its package's types, is not counted: another is drawn in its place.
// Tests that need root or QEMU run here as under a plain `go test`: they skip where they cannot
// run.
//
// Run it from the project's root by `make mutate`, or for one package:
//
//	go -C tools run ./mutate -root .. -n 50 -seed 7 ./falcon ./falcon/cc
//
// An interrupted draw says how to go on. What each test reaches is kept in build/mutate, for as
// long as the sources stay.
//
// What no test executes, none can notice; that alone is quickly told:
//
//	go -C tools run ./mutate -root .. -unreached ./falcon/...
//
// After a test was added, for the change that it is to notice:
//
//	go -C tools run ./mutate -root .. -only 'gateway.go bucket.take' ./device/gateway
package main

// Command report reads what `go test -json` prints and says what matters: a line for each package,
// the output of what failed, what was skipped, what took longest, and how many packets were
// simulated. A skipped test is a failure.
//
//	go test -json ./... | report
package main

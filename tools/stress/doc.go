// Command stress repeats the tests whose outcome may depend on the machine: those that use sockets,
// TAPs, namespaces, processes, threads, clocks or guests. It builds each package's tests once, with
// the race detector, and then runs test after test, in rounds that alternate between a quiet
// machine and one whose processors are all kept busy by other work. It prints a table and keeps the
// output of each failure.
//
//	go list ─▶ choose (reads the tests' source) ─▶ build ─▶ rounds ─▶ table, failures/
//
// Nobody lists the tests: which belong is read from the source (choose.go), so a new test belongs
// by what it does.
//
// What ran counts for later runs of the command, as long as the package's tests are built to the
// same bytes (tally.json): 50 runs of each may take several evenings.
//
// A test also fails when a process that it started, or a file in its temporary folder, is left.
package main

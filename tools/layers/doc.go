// Layers checks the shape of packages: inside a package the files form layers, and no type has so
// many methods that everything has to know it.
//
// File F uses file G if F names something that G defines for the whole package: a function, a type,
// a constant, a variable or a method. The tool looks for the order of a package's files in which
// the fewest uses run upwards, from a file to one above it. Each pair of a file and what it uses
// counts once, however often the name stands there. What a struct's fields are does not count: who
// uses a field has named the type, or has it from somebody who did.
//
//	go list, go/types ─▶ uses (file, object) ─▶ order of files ─▶ share that runs upwards ≤ 1/10
//	                                                               methods of each type    ≤ 40
//	                                                               files of package device ≤ 10
//
// Finding the best order is NP-hard, so the order is a good one and need not be the best: a package
// within the limit is so for certain, and one beyond it may have a better order that was not found.
// The search has a fixed seed; the same source gives the same answer.
//
// Test files do not count. `make lint` runs it for all packages; for one, with its order and every
// use against it:
//
//	go -C tools run ./layers -root .. -v ./device/shard
package main

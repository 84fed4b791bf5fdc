package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// The limits.
const (
	maxMethods = 40 // of one type
	oneIn      = 10 // uses, at most one of which may run upwards
)

// maxFiles is for packages that assemble: what grows there is a part that wants a package of its
// own.
var maxFiles = map[string]int{"github.com/falcon-vnic/vnic/device": 10}

var errShape = errors.New("move state with its behaviour into a type and a file of its own; -v PACKAGE shows which uses run upwards")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("layers", flag.ContinueOnError)
	root := fs.String("root", ".", "root of the project")
	verbose := fs.Bool("v", false, "show the order of each package's files, the highest first, and what runs against it")
	if err := fs.Parse(args); err != nil {
		return err
	}
	patterns := fs.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	shapes, err := load(*root, patterns)
	if err != nil {
		return err
	}
	fit := true
	for _, s := range shapes {
		fit = s.report(out, *verbose) && fit
	}
	if !fit {
		return errShape
	}
	return nil
}

// report says what of a package is beyond the limits, and whether nothing is.
func (s *shape) report(out io.Writer, verbose bool) (fit bool) {
	order := s.order()
	up := s.upwards(order)
	fit = len(up)*oneIn <= len(s.uses)
	if !fit || verbose {
		fmt.Fprintf(out, "%s: %d of %d uses run upwards, %d files\n", s.path, len(up), len(s.uses), len(s.files))
	}
	if verbose {
		for _, f := range slices.Backward(order) {
			fmt.Fprintf(out, "\t%s\n", s.files[f])
			for _, u := range up {
				if u.from == f {
					fmt.Fprintf(out, "\t\tup: %s of %s\n", u.name, s.files[u.to])
				}
			}
		}
	}
	if most := maxFiles[s.path]; most != 0 && len(s.files) > most {
		fit = false
		fmt.Fprintf(out, "%s: %d files, at most %d are allowed\n", s.path, len(s.files), most)
	}
	for _, t := range slices.Sorted(maps.Keys(s.methods)) {
		if n := s.methods[t]; n > maxMethods {
			fit = false
			fmt.Fprintf(out, "%s: %s has %d methods, at most %d are allowed\n", s.path, t, n, maxMethods)
		}
	}
	return fit
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// listUnreached tells of each function how many of its operators no test executes, those with the
// most first: no test can notice a change of them. Nothing is changed or tried.
func listUnreached(ctx context.Context, o options, all []site, w io.Writer, warn func(string)) error {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	r := newReach(o, scratch, warn)
	type function struct{ file, name string }
	lines, sum := map[function][]int{}, 0
	for _, s := range all {
		tests, err := r.ofAny(ctx, s)
		if err != nil {
			return err
		}
		if len(tests) > 0 {
			continue
		}
		rel, err := filepath.Rel(o.root, s.file)
		if err != nil {
			return err
		}
		f := function{rel, s.fn}
		lines[f], sum = append(lines[f], s.line), sum+1
	}
	for _, f := range slices.SortedFunc(maps.Keys(lines), func(a, b function) int {
		return cmp.Or(len(lines[b])-len(lines[a]), cmp.Compare(a.file, b.file), cmp.Compare(a.name, b.name))
	}) {
		fmt.Fprintf(w, "%3d %s %s: lines %v\n", len(lines[f]), f.file, f.name, slices.Compact(lines[f]))
	}
	fmt.Fprintf(w, "%d of %d operators are executed by no test\n", sum, len(all))
	return nil
}

// ofAny returns tests that reach the site, of the first package that has some.
func (r *reach) ofAny(ctx context.Context, s site) ([]testRun, error) {
	for _, by := range s.testers {
		if tests, err := r.of(ctx, by, s); err != nil || len(tests) > 0 {
			return tests, err
		}
	}
	return nil, nil
}

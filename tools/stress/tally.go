package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// row is what is known of a test, quiet and busy.
type row struct {
	test   aTest
	runs   [2]int
	failed [2]int
	most   time.Duration // that a run took
	last   time.Duration // that one took in the latest process
}

// tally has a row for each test. Any goroutine may call its methods.
type tally struct {
	mu     sync.Mutex
	rows   map[string]*row
	others map[string]keptRow // of earlier runs of the command
}

func newTally(tests []aTest) *tally {
	y := &tally{rows: map[string]*row{}}
	for _, t := range tests {
		y.rows[t.path()] = &row{test: t}
	}
	return y
}

func (y *tally) add(t aTest, busy bool, o outcome) {
	y.mu.Lock()
	defer y.mu.Unlock()
	r, i := y.rows[t.path()], 0
	if busy {
		i = 1
	}
	r.runs[i] += o.passed + o.failed
	r.failed[i] += o.failed
	r.most, r.last = max(r.most, o.each), o.each
}

// atOnce is how often a test is to run in its next process.
func (y *tally) atOnce(t aTest) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	r := y.rows[t.path()]
	if r.last == 0 {
		return 1
	}
	return int(min(max(atOnce/r.last, 1), runsAtOnce))
}

// has says whether a test ran as often as it is asked to.
func (y *tally) has(t aTest, runs int) bool {
	if t.guest {
		runs = (runs + guestShare - 1) / guestShare
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	r := y.rows[t.path()]
	return runs > 0 && r.runs[0]+r.runs[1] >= runs
}

func (y *tally) done(runs int) bool {
	for _, r := range y.rows {
		if !y.has(r.test, runs) {
			return false
		}
	}
	return true
}

// report prints the table, those that failed first, and keeps it in a file.
func (y *tally) report(o options, out io.Writer) error {
	var rows []*row
	for _, r := range y.rows {
		rows = append(rows, r)
	}
	failures := func(r *row) int { return r.failed[0] + r.failed[1] }
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(failures(b)-failures(a), cmp.Compare(a.test.path(), b.test.path()))
	})
	file, err := os.Create(filepath.Join(o.dir, "table.txt"))
	if err != nil {
		return err
	}
	defer file.Close()
	w := tabwriter.NewWriter(io.MultiWriter(out, file), 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "quiet\tfailed\tbusy\tfailed\tlongest\t test\n")
	total, failed, missed := 0, 0, 0
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%v\t %s\n", r.runs[0], r.failed[0], r.runs[1], r.failed[1], r.most.Round(10*time.Millisecond), r.test.path())
		total += r.runs[0] + r.runs[1]
		failed += failures(r)
		if r.runs[0]+r.runs[1] == 0 {
			missed++
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d runs of %d tests, %d failed\n", total, len(rows), failed)
	switch {
	case failed > 0:
		return fmt.Errorf("%d runs failed, their output is in %s", failed, filepath.Join(o.dir, "failures"))
	case missed > 0:
		return fmt.Errorf("%d tests never ran: give it more time", missed)
	case o.runs > 0 && !y.done(o.runs):
		return fmt.Errorf("not every test ran %d times: give it more time", o.runs)
	}
	return nil
}

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A reach knows for each package with tests which test reaches which statement, and how long the
// test takes. A test that does not execute a statement cannot notice a change in it, so only the
// others are run. Tests that fail without any change are left out: they would notice everything.
type reach struct {
	root, scratch string
	kept          string        // folder of what was measured before
	limit         time.Duration // for one test of the unchanged package
	warn          func(string)

	mu    sync.Mutex
	known map[string]*packageReach
}

func newReach(o options, scratch string, warn func(string)) *reach {
	return &reach{
		root: o.root, scratch: scratch, kept: filepath.Join(o.root, "build/mutate"), limit: o.limit, warn: warn,
		known: map[string]*packageReach{},
	}
}

type packageReach struct {
	once sync.Once
	err  error
	reached
}

// What is reached, as it is kept between runs.
type reached struct {
	Complete bool // every test is in it
	Tests    []testRun
	Files    map[string]map[span]*block // by import path and name of the file
}

// A testRun is a test as it runs without any change.
type testRun struct {
	Name string
	Took time.Duration
}

// A block is statements that are executed together, and the tests that execute them.
type block struct {
	Tests []int // indices of reached.Tests
}

// A span is a range of a file's text.
type span struct{ FromLine, FromCol, ToLine, ToCol int }

func (s span) contains(line, col int) bool {
	return (line > s.FromLine || line == s.FromLine && col >= s.FromCol) &&
		(line < s.ToLine || line == s.ToLine && col < s.ToCol)
}

// of returns the tests of t that reach the site, the quickest first.
func (r *reach) of(ctx context.Context, t tester, s site) ([]testRun, error) {
	r.mu.Lock()
	p := r.known[t.pkg]
	if p == nil {
		p = &packageReach{}
		r.known[t.pkg] = p
	}
	r.mu.Unlock()
	p.once.Do(func() { p.err = r.recall(ctx, t, p) })
	if p.err != nil {
		return nil, p.err
	}
	return p.reaching(s), nil
}

// reaching finds the statement around the site. An operator outside every block, as in the
// expression of a case, is reached by whatever reaches its function.
func (p *packageReach) reaching(s site) []testRun {
	var inside, function []int
	for at, b := range p.Files[s.pkg+"/"+filepath.Base(s.file)] {
		if at.contains(s.line, s.col) {
			inside = append(inside, b.Tests...)
		}
		if at.FromLine >= s.fnFrom && at.ToLine <= s.fnTo {
			function = append(function, b.Tests...)
		}
		if at.contains(s.line, s.col) && len(b.Tests) == 0 {
			return nil
		}
	}
	if len(inside) == 0 {
		inside = function
	}
	slices.Sort(inside)
	var list []testRun
	for _, i := range slices.Compact(inside) {
		list = append(list, p.Tests[i])
	}
	slices.SortStableFunc(list, func(a, b testRun) int { return cmp.Compare(a.Took, b.Took) })
	return list
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Example)\w*$`)

// measure runs every test of a package on its own, with the coverage of the packages it may hold.
// Those that are known already are not run again.
func (r *reach) measure(ctx context.Context, t tester, p *packageReach) error {
	scratch, err := os.MkdirTemp(r.scratch, "r")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	binary, profile := filepath.Join(scratch, "test"), filepath.Join(scratch, "profile")
	if err := build(ctx, r.root, t.pkg, binary, "-cover", "-covermode=set", "-coverpkg="+strings.Join(t.holds, ",")); err != nil {
		return err
	}
	list := exec.CommandContext(ctx, binary, "-test.list", ".")
	list.Dir = t.dir
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("%s: the list of its tests: %w", t.pkg, err)
	}
	leftOut := false
	for name := range strings.FieldsSeq(string(names)) {
		if !testName.MatchString(name) || slices.ContainsFunc(p.Tests, func(t testRun) bool { return t.Name == name }) {
			continue
		}
		began := time.Now()
		_, err := runBinary(ctx, binary, t.dir, []string{name}, r.limit, nil, "-test.coverprofile="+profile)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			leftOut = true
			r.leaveOut(name, t)
			continue
		}
		if err := p.add(testRun{name, time.Since(began)}, profile); err != nil {
			return err
		}
	}
	p.Complete = !leftOut
	return nil
}

func (r *reach) leaveOut(test string, t tester) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warn(fmt.Sprintf("left out: %s of %s fails without any change", test, t.pkg))
}

// add notes what a test has executed, by the profile that it left.
func (r *reached) add(t testRun, profile string) error {
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	if r.Files == nil {
		r.Files = map[string]map[span]*block{}
	}
	r.Tests = append(r.Tests, t)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		file, rest, _ := strings.Cut(lines.Text(), ":")
		var at span
		var statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &at.FromLine, &at.FromCol, &at.ToLine, &at.ToCol, &statements, &count); err != nil {
			continue // the line of the mode
		}
		if r.Files[file] == nil {
			r.Files[file] = map[span]*block{}
		}
		known := r.Files[file][at]
		if known == nil {
			known = &block{}
			r.Files[file][at] = known
		}
		if last := len(r.Tests) - 1; count > 0 && !slices.Contains(known.Tests, last) {
			known.Tests = append(known.Tests, last)
		}
	}
	return nil
}

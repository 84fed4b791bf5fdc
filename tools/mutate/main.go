package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// errLeft is the answer when more is left than may be.
var errLeft = errors.New("changes are left that no test notices: test the behaviour, take it out, " +
	"or give the reason in tools/mutate/explained.txt")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	root, explained string
	n, jobs, skip   int
	seed            uint64
	limit, slack    time.Duration
	share           float64
	verbose         bool
	unreached       bool
	only            *regexp.Regexp
	patterns        []string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.root, "root", ".", "root of the project")
	fs.StringVar(&o.explained, "explained", "tools/mutate/explained.txt", "changes with a reason, relative to the root")
	fs.IntVar(&o.n, "n", 300, "changes to try")
	fs.IntVar(&o.skip, "skip", 0, "leave out the first of the draw, that an interrupted run has tried")
	fs.IntVar(&o.jobs, "j", 2, "changes tried at once")
	fs.Uint64Var(&o.seed, "seed", 1, "which changes are drawn")
	fs.DurationVar(&o.limit, "limit", 10*time.Minute, "longest time that an unchanged test may take")
	fs.DurationVar(&o.slack, "slack", 20*time.Second, "added to five times the tests' usual time, before they count as endless")
	fs.Float64Var(&o.share, "share", 0.1, "greatest share of changes that no test notices, the explained ones included")
	fs.BoolVar(&o.verbose, "v", false, "tell of changes that tests notice, too")
	fs.BoolVar(&o.unreached, "unreached", false, "list the operators that no test executes, and try no change")
	only := fs.String("only", "", "try every change whose line in the report matches this, instead of a draw")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if *only != "" {
		var err error
		if o.only, err = regexp.Compile(*only); err != nil {
			return o, fmt.Errorf("-only: %w", err)
		}
	}
	o.patterns = fs.Args()
	if len(o.patterns) == 0 {
		o.patterns = []string{"./falcon/...", "./rdma/...", "./queues/...", "./device/...", "./qemu/..."}
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return o, err
	}
	if o.n < 1 || o.jobs < 1 {
		return o, fmt.Errorf("-n %d -j %d: both must be at least 1", o.n, o.jobs)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	why, err := readExplained(filepath.Join(o.root, o.explained))
	if err != nil {
		return err
	}
	pkgs, err := list(ctx, o.root, o.patterns)
	if err != nil {
		return err
	}
	all, err := findAll(pkgs)
	if err != nil {
		return err
	}
	leftOut := 0
	warn := func(text string) { leftOut++; fmt.Fprintln(stderr, text) }
	if o.unreached {
		return listUnreached(ctx, o, all, stdout, warn)
	}
	drawn := draw(all, o.root, o.seed)
	if o.only != nil {
		drawn = matching(all, o.root, o.only)
		o.n = len(drawn)
	}
	drawn = drawn[min(max(o.skip, 0), len(drawn)):]
	check, err := newChecker(ctx, o.root, pkgs)
	if err != nil {
		return err
	}
	mutants, at, err := check.firstCompiling(ctx, drawn, o.n)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d operators in %d packages; seed %d: %d changes", len(all), len(pkgs), o.seed, len(mutants))
	if len(at) > 0 {
		fmt.Fprintf(stdout, ", between them %d that do not compile", at[len(at)-1]+1-len(at))
	}
	fmt.Fprintln(stdout)
	var c counts
	err = tryAll(ctx, o, mutants, func(m mutant, out outcome) {
		reason := why[m.key(o.root)]
		c.add(out, reason)
		if out.unnoticed() || o.verbose {
			fmt.Fprintf(stdout, "%s\n\t%s, %s:%d\n", m.key(o.root), out, m.file, m.line)
		}
		if out.unnoticed() && reason != "" {
			fmt.Fprintf(stdout, "\texplained: %s\n", reason)
		}
	}, warn)
	if err != nil && c.tried < len(at) { // what was tried before an interrupt is told too
		fmt.Fprintf(stdout, "interrupted: go on with -skip %d -n %d\n", o.skip+at[c.tried], o.n-c.tried)
	}
	err = errors.Join(err, c.report(o, stdout))
	if leftOut > 0 {
		err = errors.Join(err, fmt.Errorf("%d tests that fail without any change were left out", leftOut))
	}
	return err
}

type counts struct{ tried, survived, explained int }

func (c *counts) add(out outcome, reason string) {
	c.tried++
	if out.unnoticed() {
		c.survived++
		if reason != "" {
			c.explained++
		}
	}
}

func (c counts) report(o options, w io.Writer) error {
	fmt.Fprintf(w, "%d changes tried: %d noticed, %d not, of which %d are explained\n",
		c.tried, c.tried-c.survived, c.survived, c.explained)
	if c.survived > c.explained || float64(c.survived) > o.share*float64(c.tried) {
		return errLeft
	}
	return nil
}

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// options are the flags.
type options struct {
	root    string
	dir     string
	lasts   time.Duration
	runs    int
	match   *regexp.Regexp
	load    bool
	listing bool
	pkgs    []string
}

const (
	// A test that is quick runs several times in one process, whose start may take longer (those of
	// cmd/vnic/… build the program): so often that they take so long, and at most this often.
	atOnce     = 40 * time.Second
	runsAtOnce = 25
	// A test with a guest runs once where others run so often.
	guestShare = 5
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := stress(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stress:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("stress", flag.ContinueOnError)
	fs.StringVar(&o.root, "root", ".", "root of the project")
	fs.StringVar(&o.dir, "o", "build/stress", "folder for the table, the failures and the built tests, in the root")
	fs.DurationVar(&o.lasts, "for", 10*time.Minute, "how long to go on")
	fs.IntVar(&o.runs, "runs", 0, "end when each test ran so often, those with guests a fifth of it; 0: when the time is over")
	fs.BoolVar(&o.load, "load", true, "keep the processors busy in every second round")
	match := fs.String("match", "", "only tests whose package/name matches this regular expression")
	fs.BoolVar(&o.listing, "list", false, "list the tests and end")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.pkgs = fs.Args()
	if len(o.pkgs) == 0 {
		o.pkgs = []string{"./..."}
	}
	if o.dir = filepath.Join(o.root, o.dir); !filepath.IsAbs(o.dir) {
		if o.dir, err = filepath.Abs(o.dir); err != nil {
			return o, err
		}
	}
	o.match, err = regexp.Compile(*match)
	return o, err
}

func stress(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	tests, err := o.tests()
	if err != nil {
		return err
	}
	if o.listing {
		for _, t := range tests {
			fmt.Fprintln(out, t.path(), map[bool]string{true: "(guest)"}[t.guest])
		}
		return nil
	}
	unlock, err := lock(o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := o.build(ctx, tests, out); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.lasts)
	defer cancel()
	tally := newTally(tests)
	if err := tally.resume(o.dir, out); err != nil {
		return err
	}
	for round := 0; ctx.Err() == nil && !tally.done(o.runs); round++ {
		busy := o.load && round%2 == 1
		end, atOnce := func() {}, 1
		if busy {
			end, atOnce = load(), 2*runtime.NumCPU()
		}
		rand.Shuffle(len(tests), func(i, j int) { tests[i], tests[j] = tests[j], tests[i] })
		err := o.round(ctx, tests, atOnce, tally, out)
		end()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return tally.report(o, out)
}

func (t aTest) path() string { return t.pkg.path + "." + t.name }

// tests lists those that belong and match.
func (o *options) tests() (list []aTest, err error) {
	all, err := listTests(o.root, o.pkgs)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if o.match.MatchString(t.path()) {
			list = append(list, t)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no test of %v that uses the machine matches %q", o.pkgs, o.match)
	}
	return list, nil
}

func (o *options) build(ctx context.Context, tests []aTest, out io.Writer) error {
	if err := os.RemoveAll(filepath.Join(o.dir, "bin")); err != nil {
		return err
	}
	for _, d := range []string{"bin", "failures"} {
		if err := os.MkdirAll(filepath.Join(o.dir, d), 0o755); err != nil {
			return err
		}
	}
	n := 0
	for _, t := range tests {
		if t.pkg.binary != "" {
			continue
		}
		n++
		if err := build(ctx, t.pkg, filepath.Join(o.dir, "bin")); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d tests of %d packages\n", len(tests), n)
	return nil
}

// round runs each test that has not had all of its runs, and so many at once: they are each other's
// load.
func (o *options) round(ctx context.Context, tests []aTest, atOnce int, tally *tally, out io.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, t := range tests {
		if tally.has(t, o.runs) {
			continue
		}
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return o.repeat(ctx, t, atOnce > 1, tally, out)
		})
	}
	return group.Wait()
}

// repeat runs a test as often as it is to run in one process.
func (o *options) repeat(ctx context.Context, t aTest, busy bool, tally *tally, out io.Writer) error {
	r, err := run(ctx, t, tally.atOnce(t))
	if err != nil {
		return err
	}
	tally.add(t, busy, r)
	if err := tally.keep(o.dir); err != nil {
		return err
	}
	if r.failed == 0 {
		return nil
	}
	name := fmt.Sprintf("%s.%s-%s.log", filepath.Base(t.pkg.dir), t.name, time.Now().Format("0102-150405"))
	path := filepath.Join(o.dir, "failures", name)
	if err := os.WriteFile(path, r.output, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "FAIL %s (%s): %s\n", t.path(), condition(busy), path)
	return err
}

func condition(busy bool) string {
	if busy {
		return "busy"
	}
	return "quiet"
}

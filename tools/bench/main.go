package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv("BENCH"), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, env string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	root := fs.String("root", ".", "root of the project")
	which := fs.String("rooms", env, "rooms, separated by commas; empty: $BENCH, or all")
	out := fs.String("o", "", "JSON file; empty: build/bench.json in the root")
	var opts testOptions
	fs.StringVar(&opts.benchtime, "benchtime", "1s", "as of go test")
	fs.IntVar(&opts.count, "count", 1, "as of go test")
	fs.StringVar(&opts.pattern, "run", "", "only benchmarks that match this regular expression")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; only flags are allowed", fs.Arg(0))
	}
	if *out == "" {
		*out = filepath.Join(*root, "build", "bench.json")
	}
	rooms, err := selectRooms(*which)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(*root, "go.mod")); err != nil {
		return fmt.Errorf("root: %w (give -root the folder with the project's go.mod)", err)
	}
	for _, r := range rooms {
		if why := r.missing(); why != "" {
			fmt.Fprintf(stderr, "%s: %s\n", r.name, why)
		}
	}

	var all report
	var failed []string
	on := machine("/") // before the benchmarks make a load of their own
	for _, j := range jobs(*root, rooms) {
		fmt.Fprintf(stderr, "running %s %s…\n", j.pkg, j.pattern)
		text, err := goTest(ctx, *root, j, opts)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		all.parse(text)
		if err != nil {
			failed = append(failed, j.pkg)
			fmt.Fprintf(stderr, "%s\n%s: %v\n", strings.TrimSpace(text), j.pkg, err)
		}
	}
	metrics, warnings := all.metrics(rooms)
	for _, w := range warnings {
		fmt.Fprintln(stderr, w)
	}
	fmt.Fprintf(stdout, "machine: %s\n\n", on)
	printMetrics(stdout, metrics)
	printBenchmarks(stdout, all.benchmarks)
	if err := writeJSON(*out, metrics); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%d metrics in %s\n", len(metrics), *out)
	switch {
	case len(failed) > 0:
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	case len(warnings) > 0:
		return fmt.Errorf("%d metrics cannot be reported, see above", len(warnings))
	}
	return nil
}

// writeJSON replaces the file at once, so that nobody reads half of it.
func writeJSON(path string, metrics []Metric) error {
	if metrics == nil {
		metrics = []Metric{}
	}
	b, err := json.MarshalIndent(metrics, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := path + ".tmp"
	if err := os.WriteFile(temp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

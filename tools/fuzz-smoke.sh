#!/bin/sh
# Runs every fuzz target of the module for a short time each: fuzz-smoke.sh [duration].
set -eu
time=${1:-5s}
go list ./... | while read -r pkg; do
	dir=$(go list -f '{{.Dir}}' "$pkg")
	targets=$(grep -hoE '^func (Fuzz[A-Za-z0-9_]+)' "$dir"/*_test.go 2>/dev/null | awk '{print $2}') || continue
	for t in $targets; do
		echo "== $pkg $t"
		go test -run '^$' -fuzz "^$t\$" -fuzztime "$time" "$pkg" </dev/null
	done
done

#!/bin/sh
# Runs every fuzz target of the module for a short time each: fuzz-smoke.sh [duration].
set -eu
time=${1:-5s}
dirs=$(go list -f '{{.Dir}}' ./...)
count=0
for dir in $dirs; do
	for t in $(cat "$dir"/*_test.go 2>/dev/null | sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p'); do
		echo "== ${dir#"$PWD"/} $t"
		go test -run '^$' -fuzz "^$t\$" -fuzztime "$time" -fuzzminimizetime 10x "$dir"
		count=$((count + 1))
	done
done
echo "$count fuzz targets, nothing found ($time each)"

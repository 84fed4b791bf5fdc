#!/bin/sh
# Runs every fuzz target of the module for a time each, one per processor: fuzz.sh [duration]. Inputs
# that reach new code are kept for the next time, in the folder fuzz of Go's build cache (go clean
# -fuzzcache empties it). An input that fails is written to the package's testdata/fuzz, which belongs
# into the repository.
set -eu
cd "$(dirname "$0")/.."
time=${1:-60s}
go=${GO:-go}
out=build/fuzz
rm -rf "$out"
mkdir -p "$out"
$go list -f '{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}' ./... |
	xargs -r grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func / /' >"$out/targets"
count=$(wc -l <"$out/targets")
[ "$count" -gt 0 ] || { echo "no fuzz targets found" >&2; exit 1; }

# one <file> <target>: prints a line, and all of the output where it fails.
cat >"$out/one" <<'ONE'
#!/bin/sh
dir=$(dirname "$1")
log=$OUT/$(basename "$dir").$2.log
$GO test -run '^$' -fuzz "^$2\$" -fuzztime "$TIME" -fuzzminimizetime 10x -parallel 1 "$dir" >"$log" 2>&1 && passed=1 || passed=0
# On a busy machine go test can report the end of its own time as a failure, without an input.
if grep -q '^    context deadline exceeded$' "$log" && ! grep -q 'Failing input written' "$log"; then
	passed=1
fi
if [ "$passed" = 1 ]; then
	echo "ok   ${dir#"$PWD"/} $2 $(grep -o 'execs: [0-9]*' "$log" | tail -1)"
else
	echo "FAIL ${dir#"$PWD"/} $2"
	cat "$log"
	touch "$OUT/failed"
fi
ONE
chmod +x "$out/one"
OUT=$PWD/$out TIME=$time GO=$go xargs -a "$out/targets" -P "$(nproc)" -n 2 "$out/one"
if [ -e "$out/failed" ]; then
	echo "an input that fails is in the package's testdata/fuzz: mend it and commit the input" >&2
	exit 1
fi
echo "$count fuzz targets, nothing found ($time each)"

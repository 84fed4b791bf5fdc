#!/bin/sh
# Statement coverage of the tests that `make test` runs: a table by room, build/cover.html and
# build/cover.out. With packages: of their tests alone. The program that tests start counts, too: it is
# built with -cover and, like a test, writes its counts to GOCOVERDIR when it ends. A process that a
# signal kills writes nothing, and neither does one inside a guest.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./...
go=${GO:-go}
out=$PWD/build/cover
counting="-cover -covermode=atomic -coverpkg=./..."
rm -rf "$out"
mkdir -p "$out/counts"
chmod 1777 "$out/counts" # some processes are another user's
$go -C tools build -o ../build/report ./report
$go build $counting -ldflags=-w -o "$out/vnic" ./cmd/vnic
failed=
# go test gives a test's processes a folder of its own, in which it looks for those of the test alone.
VNIC_TEST_REQUIRE=1 VNIC_TEST_PROGRAM=$out/vnic \
	$go test -json $counting -ldflags=-w -vet=off -exec "env GOCOVERDIR=$out/counts" -timeout 30m -skip '^Test(Long|Release|Inside)' "$@" -args -test.gocoverdir="$out/counts" |
	build/report || failed=1
$go tool covdata textfmt -i "$out/counts" -o build/cover.out
$go tool cover -html build/cover.out -o build/cover.html
# Lines of the profile: <module>/<room>/<file>:<from>,<to> <statements> <times>
awk -F '[/ ]' 'NR > 1 {
	n[$4] += $(NF-1); n["all"] += $(NF-1)
	if ($NF > 0) { ran[$4] += $(NF-1); ran["all"] += $(NF-1) }
} END { for (room in n) printf "%-10s %6d of %6d statements  %5.1f %%\n", room, ran[room], n[room], 100*ran[room]/n[room] }' \
	build/cover.out | sort -k 4n
[ -z "$failed" ] || { echo "tests failed: what they did is missing" >&2; exit 1; }

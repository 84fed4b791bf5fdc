#!/bin/sh
# Proves that a new machine needs nothing but Debian and Go: clones the repository and runs targets of
# make (test and bench, unless others are named) with an empty module cache, build cache, user cache
# and package list. Nothing outside of a temporary folder is changed but that apt installs packages.
#
#	tools/clean-machine.sh [target…]
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- test bench
work=$(mktemp -d "${TMPDIR:-/tmp}/vnic-clean-XXXXXX")
cleanup() {
	chmod -R u+w "$work" 2>/dev/null || true # module caches are read-only
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
mkdir -p "$work/home" "$work/lists/partial" "$work/archives/partial"
cat >"$work/apt.conf" <<CONF
Dir::State::lists "$work/lists";
Dir::Cache "$work/archives";
CONF
git clone -q "$top" "$work/vnic"
echo "commit $(git -C "$work/vnic" rev-parse --short HEAD), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
failed=''
for target; do
	start=$(date +%s)
	if env -i PATH="$PATH" LANG=C.UTF-8 HOME="$work/home" APT_CONFIG="$work/apt.conf" \
		GOPATH="$work/home/go" GOMODCACHE="$work/home/go/pkg/mod" GOCACHE="$work/home/go-build" \
		XDG_CACHE_HOME="$work/home/.cache" ${GOPROXY:+GOPROXY="$GOPROXY"} ${BENCH:+BENCH="$BENCH"} \
		make -C "$work/vnic" "$target"; then
		echo "== make $target: passed in $(($(date +%s) - start)) s"
	else
		echo "== make $target: FAILED after $(($(date +%s) - start)) s"
		failed="$failed $target"
	fi
done
[ -z "$failed" ] || { echo "failed on a clean machine:$failed" >&2; exit 1; }

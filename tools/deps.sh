#!/bin/sh
# Installs the Debian packages that the demo (`deps.sh demo`), or the full test run
# and the benchmarks need, and only those that are missing. The guests' kernel is
# not among them: it is unpacked into a cache folder, never installed.
set -eu
need=''
want() { # command package
	command -v "$1" >/dev/null 2>&1 || need="$need $2"
}
want qemu-system-x86_64 qemu-system-x86
want iperf3 iperf3
if [ "${1:-}" != demo ]; then
	want ip iproute2
	want nsenter util-linux
	want busybox busybox # udhcpc
	want ping iputils-ping
	want ib_write_bw "perftest ibverbs-providers" # Soft-RoCE, to compare with (make bench)
	want gcc "gcc libc6-dev" # go test -race
	want tshark tshark # the test of docs/wireshark
fi
[ -n "$need" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "missing packages:$need; run as root, or: sudo apt-get install -y --no-install-recommends$need" >&2
	exit 1
fi
echo "installing$need" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $need >/dev/null

#!/bin/sh
# Downloads what building, testing and measuring need: Go modules, the tools' own, the guests' kernel
# and packages, a QEMU that knows vfio-user, and User Mode Linux. Nothing is downloaded later, least of
# all in a network namespace or while a clock runs.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
$go mod download
$go mod download -modfile=tools/go.mod
$go run ./qemu/image/fetch || {
	[ "$(id -u)" = 0 ] || exit 1
	apt-get update -qq # the list names a kernel that the archive no longer has
	$go run ./qemu/image/fetch
}
./tools/qemu.sh >/dev/null
./tools/uml.sh >/dev/null
for what in headers rdma-core; do ./guestlib/linux/fetch.sh $what >/dev/null; done

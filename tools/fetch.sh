#!/bin/sh
# Downloads what building, testing and measuring need: Go modules, the tools' own, the guests' kernels
# and packages, a QEMU that knows vfio-user, and User Mode Linux. Nothing is downloaded later, least of
# all in a network namespace or while a clock runs.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
$go mod download
$go mod download -modfile=tools/go.mod
kernels() { $go run ./qemu/image/fetch "$(./guestlib/linux/fetch.sh newest)"; }
kernels || {
	[ "$(id -u)" = 0 ] || exit 1
	apt-get update -qq # the list names a kernel that the archive no longer has
	kernels
}
./tools/qemu.sh >/dev/null
./tools/uml.sh >/dev/null
for what in headers "headers $(./guestlib/linux/fetch.sh newest)" rdma-core; do ./guestlib/linux/fetch.sh $what >/dev/null; done

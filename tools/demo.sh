#!/bin/sh
# Runs the demo as far as this machine allows, and says why when it is not the whole.
set -eu
bin=$1
shift
here=$(dirname "$0")
if [ "$(id -u)" != 0 ]; then
	echo "demo: not root, so no TAP and no lab: two NICs over UDP on the loopback interface (sudo make demo runs the whole)" >&2
	command -v qemu-system-x86_64 >/dev/null 2>&1 && exec "$bin" demo "$@"
	echo "demo: QEMU is missing: two bare clients instead of guests" >&2
	exec "$bin" demo --no-vm "$@"
fi
if ! command -v qemu-system-x86_64 >/dev/null 2>&1 || ! command -v iperf3 >/dev/null 2>&1; then
	if ! "$here/deps.sh" demo && ! command -v qemu-system-x86_64 >/dev/null 2>&1; then
		echo "demo: QEMU is missing and could not be installed: two bare clients instead" >&2
		exec "$bin" demo --no-vm "$@"
	fi
fi
# The Linux driver for the guests' kernel; what was built before is not built again.
driver=$here/../build/linux
[ -e "$driver/provider" ] || echo "demo: building the Linux driver for the guests, once" >&2
if "$here/deps.sh" driver && said=$(make -s -j"$(nproc)" -C "$here/../guestlib/linux" 2>&1); then
	set -- --driver "$driver" "$@"
else
	[ -z "${said:-}" ] || echo "$said" >&2
	echo "demo: the Linux driver could not be built, so the guests will not run ib_write_bw and rping" >&2
fi
exec "$bin" demo "$@"

#!/bin/sh
# Runs the demo as far as this machine allows, and says why when it is not the whole.
set -eu
bin=$1
shift
if [ "$(id -u)" != 0 ]; then
	echo "demo: not root, so no TAP, no bridge and no guests: two bare clients over an in-memory fabric instead (sudo make demo runs the whole)" >&2
	exec "$bin" demo --no-vm "$@"
fi
if ! command -v qemu-system-x86_64 >/dev/null 2>&1 || ! command -v iperf3 >/dev/null 2>&1; then
	if ! "$(dirname "$0")/deps.sh" demo && ! command -v qemu-system-x86_64 >/dev/null 2>&1; then
		echo "demo: QEMU is missing and could not be installed: two bare clients over an in-memory fabric instead" >&2
		exec "$bin" demo --no-vm "$@"
	fi
fi
exec "$bin" demo "$@"

#!/bin/sh
# Installs the packages of a folder (default build/packages) in a new Debian 12 and purges them again:
# first in a folder, where dkms builds the module and which has the host's kernel, then in a QEMU guest
# that has a disk with this Debian and runs its kernel: the module is loaded, and programs use the
# device (BenchmarkPackages in cmd/vnic/linuxtest). Nothing may be left. Needs root, debootstrap, a mirror, and
# what `make deps` and `make fetch` bring; it takes some minutes for the folder and many for the guest,
# in which dkms runs under emulation, and 4 GB for as long.
set -eu
[ "$(id -u)" = 0 ] || { echo "packages-test.sh: changes its root folder, which takes root" >&2; exit 1; }
cd "$(dirname "$0")/../.."
# Of its mounts, processes and files nothing is left when it ends, or is ended.
if [ -z "${VNIC_UNSHARED:-}" ]; then
	VNIC_UNSHARED=$(mktemp -d)
	export VNIC_UNSHARED
	trap 'kill -KILL "${inner:-}" 2>/dev/null || true; wait; rm -rf "$VNIC_UNSHARED" 2>/dev/null || { sleep 1; rm -rf "$VNIC_UNSHARED"; }' EXIT
	trap 'exit 1' HUP INT TERM
	setpriv --pdeathsig KILL unshare --mount --mount-proc --pid --fork --kill-child "$0" "$@" &
	inner=$!
	wait "$inner"
	exit
fi
tmp=$VNIC_UNSHARED
root=$tmp/root
packages=$(realpath "${1:-build/packages}")
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null

say() { echo "packages-test: $*"; }
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
quietly() { # COMMAND…: what it says is shown if it fails
	"$@" >"$tmp/said" 2>&1 || { cat "$tmp/said"; say "failed: $*" >&2; exit 1; }
}
# mounted COMMAND…: with the file systems that Debian's programs expect in its folder
mounted() {
	mount -t proc proc "$root/proc"
	mount --bind /dev "$root/dev"
	"$@"
	umount "$root/proc" "$root/dev"
}
# files: all but what dpkg, apt and depmod keep
files() {
	(cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./debs -o -path ./tmp -o -path ./run \) -prune -o -print) |
		grep -vE '^\./(var/(lib/dpkg|log|cache)|usr/lib/modules/[^/]*/modules\.)' | sort
}

# debian makes a Debian 12 in the folder, with its kernel and the packages beside it.
debian() {
	quietly debootstrap --variant=minbase bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}"
	cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$root/etc/apt/"
	mounted configured
	mkdir "$root/debs"
	cp "$packages"/*.deb "$root/debs/"
}
configured() {
	quietly inside apt-get update -q
	quietly inside env INITRD=No apt-get install -y -q --no-install-recommends dkms linux-image-amd64 linux-headers-amd64 rdma-core ibverbs-utils perftest
	quietly inside apt-get clean
}

in_folder() {
	files >"$tmp/before"
	start=$(date +%s)
	quietly inside sh -c 'dpkg --install /debs/*.deb'
	say "installed in $(($(date +%s) - start)) s"
	inside dkms status -m vnic | tee "$tmp/status"
	grep -q ': installed$' "$tmp/status" || { cat "$tmp/said"; say "dkms did not install the module" >&2; exit 1; }
	inside sh -ec 'for k in /lib/modules/*; do test "$(modinfo -k "${k##*/}" -F license vnic)" = "Dual BSD/GPL"; done
		ldd /usr/lib/x86_64-linux-gnu/libibverbs/libvnic-rdmav34.so | grep -c "not found" | grep -q "^0$"
		grep -qx "driver vnic" /etc/libibverbs.d/vnic.driver
		vnic version >/dev/null
		test -e /lib/systemd/system/vnic.service -a -e /usr/share/man/man1/vnic-run.1.gz'
	quietly inside sh -c 'dpkg --install /debs/*.deb && dpkg-reconfigure vnic-dkms'
	inside dkms status -m vnic | grep -q ': installed$' || { cat "$tmp/said"; say "not there any more after it was installed again" >&2; exit 1; }
	quietly inside dpkg --purge vnic vnic-dkms ibverbs-provider-vnic
	files >"$tmp/after"
	diff "$tmp/before" "$tmp/after" || { say "left behind, or taken away: see above" >&2; exit 1; }
	say "purged, and nothing is left"
}

# The kernel of the guest is the one of its Debian.
in_guest() {
	mkdir "$tmp/go"
	VNIC_TEST_REQUIRE=1 VNIC_DRIVER_KERNEL=$root VNIC_TEST_DEBIAN=$tmp/disk TMPDIR=$tmp/go \
		"${GO:-go}" test -run '^$' -bench '^BenchmarkPackages$' -benchtime 1x -timeout 120m -v ./cmd/vnic/linuxtest
}

say "a Debian 12 with dkms, kernel and kernel headers, in $root"
debian
quietly mke2fs -q -t ext4 -d "$root" "$tmp/disk" "$(($(du -sm "$root" | cut -f 1) + 1024))M"
say "in the folder, without a kernel of its own"
mounted in_folder
say "in a guest that runs $(ls "$root/lib/modules")"
in_guest

#!/bin/sh
# Installs the packages of a folder (default build/packages) in a new Debian 12 in a temporary folder,
# has dkms build the module there for Debian's current kernel, installs them once more over
# themselves, and purges them. Nothing may be left. Needs root, debootstrap and a mirror; it takes a
# minute or two, and 600 MB for as long.
set -eu
[ "$(id -u)" = 0 ] || { echo "packages-test.sh: changes its root folder, which takes root" >&2; exit 1; }
packages=$(cd "$(dirname "$0")/../.." && realpath "${1:-build/packages}")
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
tmp=$(mktemp -d)
# Of its own mounts nothing is left when it ends.
[ -n "${VNIC_UNSHARED:-}" ] || exec env VNIC_UNSHARED="$tmp" unshare --mount --pid --fork --kill-child "$0" "$packages"
rmdir "$tmp"
tmp=$VNIC_UNSHARED
root=$tmp/root
trap 'umount -R "$root/proc" "$root/dev" 2>/dev/null || true; rm -rf --one-file-system "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

say() { echo "packages-test: $*"; }
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
quietly() { # COMMAND…: what it says is shown if it fails
	"$@" >"$tmp/said" 2>&1 || { cat "$tmp/said"; say "failed: $*" >&2; exit 1; }
}
# files: all but what dpkg, apt and depmod keep
files() {
	(cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./debs -o -path ./tmp -o -path ./run \) -prune -o -print) |
		grep -vE '^\./(var/(lib/dpkg|log|cache)|usr/lib/modules/[^/]*/modules\.)' | sort
}

say "a Debian 12 with dkms and kernel headers, in $root"
quietly debootstrap --variant=minbase bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}"
cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$root/etc/apt/"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
quietly inside apt-get update -q
quietly inside apt-get install -y -q --no-install-recommends dkms linux-headers-amd64 rdma-core ibverbs-utils
mkdir "$root/debs"
cp "$packages"/*.deb "$root/debs/"
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

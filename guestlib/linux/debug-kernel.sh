#!/bin/sh
# Builds a kernel that finds fault with drivers (debug.config: KASAN, lockdep and more) from Debian's
# linux-source-6.1, into the project's cache, and prints its folder: boot and lib/modules, as Debian's
# package of a kernel has them, and usr/src/linux-headers-RELEASE, which `fetch.sh headers RELEASE`
# knows. Nothing is installed. It is built once, and again when debug.config or Debian's source are
# others. The folder takes 2 GB.
#
# Needs apt's sources, dpkg-deb, and what tools/deps.sh kernel installs.
set -eu
config=$(cd "$(dirname "$0")" && pwd)/debug.config
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vnic
package=linux-source-6.1

die() {
	echo "debug-kernel.sh: $*" >&2
	exit 1
}

version=$(apt-cache policy $package | sed -n 's/^ *Candidate: //p')
[ -n "$version" ] && [ "$version" != '(none)' ] || die "apt knows no $package: run apt-get update"
dir=$cache/driver/debug-kernel-$version
tree=$dir/usr/src/linux
mkdir -p "$cache/driver"
exec 9>"$cache/driver/debug-kernel.lock"
flock 9

unpack() {
	tmp=$(mktemp -d "$cache/driver/.debug-kernel-XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	mkdir -p "$tmp/root/usr/src/linux"
	(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$package=$version" >/dev/null)
	dpkg-deb --fsys-tarfile "$tmp/${package}"_*.deb | tar -xO "./usr/src/$package.tar.xz" |
		tar -xJ -C "$tmp/root/usr/src/linux" --strip-components=1
	allow_overlaps "$tmp/root/usr/src/linux/kernel/dma/debug.c"
	mv "$tmp/root" "$dir"
}

# Programs may register memory twice, which ib_umem_get then maps twice, and nvme_rdma maps two things in
# one cache line. DMA_API_DEBUG takes that for a fault, and after its first report says nothing more.
allow_overlaps() { # FILE
	sed -i 's/} else if (rc == -EEXIST .*{$/} else if (0) {/' "$1"
	grep -q 'else if (0)' "$1" || die "$1 is not as expected"
}

# An interrupted build goes on where it was.
build() {
	make="nice make -s -C $tree -j$(nproc)"
	$make KCONFIG_ALLCONFIG="$config" allnoconfig >&2
	lost=$(grep '^CONFIG_' "$config" | grep -vxFf "$tree/.config" || true)
	[ -z "$lost" ] || die "the kernel's configuration does not take $lost"
	$make bzImage modules >&2
	release=$($make kernelrelease)
	rm -rf "$dir/boot" "$dir/lib"
	mkdir "$dir/boot"
	cp "$tree/arch/x86/boot/bzImage" "$dir/boot/vmlinuz-$release"
	cp "$tree/.config" "$dir/boot/config-$release"
	$make INSTALL_MOD_PATH="$dir" DEPMOD=true modules_install >&2
	ln -sfn linux "$dir/usr/src/linux-headers-$release"
	cp "$config" "$dir/made-with"
}

[ -d "$dir" ] || unpack
cmp -s "$config" "$dir/made-with" || build
echo "$dir"

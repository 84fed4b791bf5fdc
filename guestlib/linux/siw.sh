#!/bin/sh
# Builds Linux's siw, the software iWARP that no Debian kernel has, out of Debian's linux-source-6.1 against
# the kernel headers that fetch.sh caches, and prints the path of siw.ko. Nothing is installed. It is built
# once for each release and version of the source: half a minute, after a download of 140 MB of which 300 KB
# are kept.
#
#   siw.sh [RELEASE]   RELEASE as uname -r says, default: the current kernel's
#
# Load crc32c_generic before it: it looks for a checksum when it is loaded.
#
# Needs apt's sources, dpkg-deb, xz, and what tools/deps.sh driver installs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vnic/driver
package=linux-source-6.1

die() {
	echo "siw.sh: $*" >&2
	exit 1
}

headers=$("$here/fetch.sh" headers "${1:-}")
release=${headers##*/linux-headers-}
case $release in
6.1.*) ;;
*) die "release $release: $package is the source of 6.1" ;;
esac
version=$(apt-cache policy $package | sed -n 's/^ *Candidate: //p')
[ -n "$version" ] && [ "$version" != '(none)' ] || die "apt knows no $package: run apt-get update"
source=$cache/siw-$version/source
made=$cache/siw-$version/$release
mkdir -p "$cache"
exec 9>"$cache/siw.lock"
flock 9
tmp=$(mktemp -d "$cache/.siw-XXXXXX")
trap 'rm -rf "$tmp"' EXIT

if [ ! -d "$source" ]; then
	(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$package=$version" >/dev/null)
	mkdir "$tmp/source"
	dpkg-deb --fsys-tarfile "$tmp/${package}"_*.deb | tar -xO "./usr/src/$package.tar.xz" |
		tar -xJ -C "$tmp/source" --strip-components=5 "$package/drivers/infiniband/sw/siw"
	mkdir -p "${source%/*}"
	mv "$tmp/source" "$source"
fi
if [ ! -e "$made/siw.ko" ]; then
	cp -r "$source" "$tmp/$release"
	make -s -C "$headers" M="$tmp/$release" CONFIG_RDMA_SIW=m modules >&2
	rm -rf "$made"
	mv "$tmp/$release" "$made"
fi
echo "$made/siw.ko"

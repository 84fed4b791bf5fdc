#!/bin/sh
# Makes Debian's User Mode Linux available, whose driver of virtio-net over vhost-user is neither QEMU's
# nor DPDK's, and prints the folder with its package's files. Nothing is installed, and what is in the
# cache is not downloaded again.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vnic/uml
package=user-mode-linux
version=$(apt-cache policy $package | sed -n 's/^ *Candidate: //p')
[ -n "$version" ] && [ "$version" != '(none)' ] || { echo "uml.sh: apt knows no $package: run apt-get update" >&2; exit 1; }
dir=$cache/$version
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if [ ! -d "$dir" ]; then
	tmp=$(mktemp -d "$cache/.new-XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM
	(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download $package >/dev/null)
	mkdir "$tmp/root"
	dpkg-deb -x "$tmp/$package"_*.deb "$tmp/root"
	mv "$tmp/root" "$dir"
fi
echo "$dir"

#!/bin/sh
# Fetches what the driver is built with, into the project's cache, and prints the folder. Nothing is
# installed.
#
#   fetch.sh headers [RELEASE]   Debian's kernel headers; RELEASE as uname -r says, default: the
#                                current kernel's, as linux-headers-amd64 names it. A kernel of
#                                debug-kernel.sh has its own
#   fetch.sh newest              the release of Debian's newest kernel for this suite (6.12)
#   fetch.sh rdma-core           the source of rdma-core, by apt-get source
#   fetch.sh checkpatch          the kernel's style checker, out of its source (140 MB, kept: 300 KB)
#   fetch.sh upstream PACKAGE    the newest source of linux or rdma-core in Debian (sid); of linux (160 MB)
#                                what it takes to build RDMA drivers (600 MB). The last one is kept
#
# Needs apt's sources and dpkg-deb. Packages are checked by apt as always.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vnic
mkdir -p "$cache/driver"
exec 9>"$cache/driver/lock"
flock 9

die() {
	echo "fetch.sh: $*" >&2
	exit 1
}

# depends PACKAGE PATTERN: the first package of that name it depends on
depends() {
	apt-cache depends "$1" 2>/dev/null | sed -n "s/^ *|\{0,1\}Depends: \($2\)\$/\1/p" | head -n 1
}

release_of() { # META
	name=$(depends "$1" 'linux-headers-[0-9].*')
	[ -n "$name" ] || die "apt knows no $1: run apt-get update"
	echo "${name#linux-headers-}"
}

headers() {
	release=${1:-$(release_of linux-headers-amd64)}
	package=linux-headers-$release
	for at in "$cache"/driver/debug-kernel-*/usr/src/"$package"; do
		[ ! -d "$at" ] || { echo "$at" && return; }
	done
	version=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
	[ -n "$version" ] && [ "$version" != '(none)' ] || die "apt knows no $package: run apt-get update"
	dir=$cache/driver/${package}_$version
	at=$dir/usr/src/$package
	if [ ! -d "$dir" ]; then
		tmp=$(mktemp -d "$cache/driver/.headers-XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		mkdir "$tmp/debs" "$tmp/root"
		(
			cd "$tmp/debs"
			for p in "$package" "$(depends "$package" 'linux-headers-.*-common')" "$(depends "$package" 'linux-kbuild-.*')" "$(depends "$package" 'linux-compiler-.*')"; do
				[ -z "$p" ] || apt-get -qq -o APT::Sandbox::User=root download "$p" >/dev/null
			done
			for deb in *.deb; do dpkg-deb -x "$deb" "$tmp/root"; done
		)
		# The package is not installed: its Makefile names the common part by an absolute path.
		sed -i "s,^include /usr/src/,include $dir/usr/src/," "$tmp/root/usr/src/$package/Makefile"
		rm -f "$tmp/root/usr/src/$package/vmlinux" # BTF of modules would want pahole
		mv "$tmp/root" "$dir"
	fi
	echo "$at"
}

# Debian 12's own source first, then Debian 13's: the library that is made is the same, since the
# private interface of rdma-core is.
rdma_core() {
	at=$cache/driver/rdma-core
	if [ ! -d "$at" ]; then
		tmp=$(mktemp -d "$cache/driver/.rdma-core-XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		mkdir -p "$tmp/lists/partial" "$tmp/src" "$tmp/root"
		for suite in bookworm trixie; do
			echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$tmp/sources.list"
			apt="apt-get -qq -o Dir::Etc::sourcelist=$tmp/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$tmp/lists -o APT::Sandbox::User=root"
			(cd "$tmp/src" && $apt update && $apt source --tar-only --download-only rdma-core) >"$tmp/log" 2>&1 || true
			tar=$(find "$tmp/src" -name 'rdma-core_*.orig.tar.*' | head -n 1)
			[ -z "$tar" ] || break
		done
		[ -n "$tar" ] || die "no source of rdma-core: $(tail -n 3 "$tmp/log")"
		tar -xf "$tar" -C "$tmp/root" --strip-components=1
		mv "$tmp/root" "$at"
	fi
	echo "$at"
}

# A mirror may list a version that it does not have, or not any more: then the next older one serves.
upstream() { # PACKAGE
	tmp=$(mktemp -d "$cache/driver/.upstream-XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	mkdir -p "$tmp/lists/partial" "$tmp/root"
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main" >"$tmp/sources.list"
	options="-o Dir::Etc::sourcelist=$tmp/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$tmp/lists -o APT::Sandbox::User=root"
	apt-get -qq $options update >&2
	for version in $(apt-cache $options showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -urV); do
		at=$cache/driver/upstream-$1-${version%-*}
		[ ! -d "$at" ] || { echo "$at" && return; }
		(cd "$tmp" && apt-get -qq $options source --only-source --tar-only --download-only "$1=$version" >"$tmp/log" 2>&1) && break
	done
	tar=$(find "$tmp" -name "$1_*.orig.tar.*" | head -n 1)
	[ -n "$tar" ] || die "no source of $1: $(tail -n 3 "$tmp/log")"
	tar -xf "$tar" -C "$tmp/root" --strip-components=1 --exclude='*/Documentation/*/*' --exclude='*/tools/testing' --exclude='*/tools/perf' \
		--exclude='*/drivers/gpu/*/*.[ch]' --exclude='*/drivers/net/*.[ch]' --exclude='*/drivers/media/*.[ch]' --exclude='*/sound/*.[ch]' \
		--exclude='*/fs/*/*.c' --exclude='*/arch/*/boot/dts' --exclude='*/rust/*.rs'
	rm -rf "$cache/driver/upstream-$1-"*
	mv "$tmp/root" "$at"
	echo "$at"
}

checkpatch() {
	package=$(depends linux-source 'linux-source-.*')
	[ -n "$package" ] || die "apt knows no linux-source: run apt-get update"
	at=$cache/driver/checkpatch-${package#linux-source-}
	if [ ! -d "$at" ]; then
		tmp=$(mktemp -d "$cache/driver/.checkpatch-XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		mkdir -p "$tmp/root/scripts" "$tmp/root/include" # it looks for names in the latter
		(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$package" >/dev/null)
		dpkg-deb --fsys-tarfile "$tmp/$package"_*.deb | tar -xO "./usr/src/$package.tar.xz" |
			tar -xJ -C "$tmp/root/scripts" --strip-components=2 "$package/scripts/checkpatch.pl" "$package/scripts/spelling.txt" "$package/scripts/const_structs.checkpatch"
		mv "$tmp/root" "$at"
	fi
	echo "$at"
}

case ${1:-} in
headers) headers "${2:-}" ;;
newest) release_of linux-headers-6.12-amd64 ;;
rdma-core) rdma_core ;;
checkpatch) checkpatch ;;
upstream) upstream "${2:?linux or rdma-core}" ;;
*) die 'say headers [RELEASE], newest, rdma-core, checkpatch or upstream PACKAGE' ;;
esac

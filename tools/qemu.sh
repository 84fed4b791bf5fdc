#!/bin/sh
# Makes a QEMU that knows vfio-user (10.1 or newer) available on a Debian 12 that has an older one, and
# prints its program's path. Nothing is installed: packages of later releases of Debian, with their
# libraries, are downloaded by an apt of its own (which checks signatures and hashes), unpacked into the
# project's cache, and started by their own loader. What is in the cache is not downloaded again;
# QEMU_REFRESH=1 does it again.
#
# Everybody gets the version that the project was tested with, as long as there is one place that has it:
# the mirror, which keeps the newest of each suite only, then Debian's archive of all days. After that
# the newest of backports or of unstable has to do, and a note says so. QEMU_PIN=any takes that at once.
set -eu
pin=1:11.1.3+ds-1~bpo13+1
pin_sha256=447decc4b3c245edc1d0940bdf97c87e07b2e3bd4b24c4d0c7155d860d52bd5f # of qemu-system-x86_…_amd64.deb
pin_day=20261120T000000Z # on which the archive had it, and what it needs
new_enough() { # program
	v=$("$1" --version 2>/dev/null | sed -n '1s/.*version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
	# shellcheck disable=SC2086
	set -- ${v:-0 0}
	[ "$1" -gt 10 ] || { [ "$1" -eq 10 ] && [ "$2" -ge 1 ]; }
}
own=$(command -v qemu-system-x86_64 || true)
if [ -n "$own" ] && new_enough "$own"; then
	echo "$own"
	exit 0
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vnic/qemu
program=$cache/current/qemu-system-x86_64
if [ -z "${QEMU_REFRESH:-}" ] && [ -x "$program" ] && new_enough "$program"; then
	echo "$program"
	exit 0
fi
[ "$(uname -m)" = x86_64 ] || { echo "qemu.sh: packages are known for x86_64 only; install QEMU 10.1 or newer" >&2; exit 1; }
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock -w 600 9
if [ -z "${QEMU_REFRESH:-}" ] && [ -x "$program" ] && new_enough "$program"; then # another was faster
	echo "$program"
	exit 0
fi
tmp=$(mktemp -d "$cache/.new-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
mirror=${QEMU_MIRROR:-http://deb.debian.org/debian}
archive=${QEMU_ARCHIVE:-http://snapshot.debian.org/archive/debian/$pin_day}
apt() { # for sources in $tmp/sources
	apt-get -qq -o Dir::Etc::SourceList="$tmp/sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$tmp/lists" \
		-o Dir::State::Status="$tmp/status" -o Dir::Cache="$tmp" -o Dir::Cache::Archives="$tmp/debs" -o Dir::Etc::Preferences=/dev/null \
		-o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true -o APT::Architecture=amd64 \
		-o Acquire::Check-Valid-Until=false -o Acquire::http::Timeout=60 -o Acquire::Retries=3 "$@" >&2
}
# get URL "SUITES" TARGET [VERSION]: downloads QEMU with its libraries, the program's of the target suite.
get() {
	rm -rf "$tmp/lists" "$tmp/debs"
	mkdir -p "$tmp/lists/partial" "$tmp/debs/partial"
	: >"$tmp/status"
	for suite in $2; do
		echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $1 $suite main"
	done >"$tmp/sources"
	echo "downloading QEMU${4:+ $4} with its libraries (40 MB) from $1, $3" >&2
	apt update -o APT::Update::Error-Mode=any &&
		apt -y --no-install-recommends -t "$3" --download-only install "qemu-system-x86${4:+=$4}"
}
pinned() { # URL
	get "$1" "trixie trixie-backports" trixie-backports "$pin" || return 1
	deb=$(find "$tmp/debs" -name 'qemu-system-x86_*_amd64.deb')
	echo "$pin_sha256  $deb" | sha256sum -c --quiet - >&2 || { echo "qemu.sh: $1 has another QEMU $pin than the project's" >&2; return 1; }
}
newest() {
	echo "qemu.sh: not the $pin that the project was tested with, but the newest there is" >&2
	get "$mirror" "trixie trixie-backports" trixie-backports && found && return
	get "$mirror" sid sid && found
}
found() { # whether what was downloaded is new enough: the name says its version
	v=$(find "$tmp/debs" -name 'qemu-system-x86_*_amd64.deb' | sed 's/.*_\(1%3a\|1:\)\?\([0-9]*\.[0-9]*\).*/\2/')
	[ -n "$v" ] && dpkg --compare-versions "$v" ge 10.1
}
if [ "${QEMU_PIN:-}" = any ]; then
	newest
else
	pinned "$mirror" || pinned "$archive" || newest
fi || { echo "qemu.sh: neither $mirror nor $archive has a QEMU of 10.1 or newer for Debian 13" >&2; exit 1; }
root=$tmp/root
mkdir "$root"
for deb in "$tmp"/debs/*.deb; do
	dpkg-deb -x "$deb" "$root"
done
# Programs find what they need below their own root.
libs=/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu
library_path=$(echo "$libs" | sed "s|/lib/|$root/lib/|;s|:/usr|:$root/usr|")
loader=$(find "$root" -name ld-linux-x86-64.so.2 -type f | head -1)
[ -n "$loader" ] || { echo "qemu.sh: the packages have no loader" >&2; exit 1; }
mkdir -p "$tmp/q/lib" "$tmp/q/share"
"$loader" --library-path "$library_path" --list "$root/usr/bin/qemu-system-x86_64" |
	awk '$3 ~ /^\// {print $3}' | while read -r f; do cp -L "$f" "$tmp/q/lib/"; done
cp -L "$loader" "$tmp/q/lib/ld.so"
cp -L "$root/usr/bin/qemu-system-x86_64" "$tmp/q/qemu"
for dir in usr/share/qemu usr/share/seabios usr/lib/ipxe/qemu; do
	[ ! -d "$root/$dir" ] || cp -rL "$root/$dir/." "$tmp/q/share/" 2>/dev/null || true # some links lead out of the packages
done
cat >"$tmp/q/qemu-system-x86_64" <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
QEMU_MODULE_DIR=$here/modules; export QEMU_MODULE_DIR # the host's are for another QEMU
exec "$here/lib/ld.so" --argv0 qemu-system-x86_64 --library-path "$here/lib" "$here/qemu" -L "$here/share" "$@"
END
chmod 755 "$tmp/q" "$tmp/q/qemu-system-x86_64" "$tmp/q/lib/ld.so"
new_enough "$tmp/q/qemu-system-x86_64" || { echo "qemu.sh: $("$tmp/q/qemu-system-x86_64" --version | head -1): older than 10.1" >&2; exit 1; }
version=$("$tmp/q/qemu-system-x86_64" --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
rm -rf "${cache:?}/$version"
mv "$tmp/q" "$cache/$version"
ln -sfn "$version" "$cache/current"
echo "$program"

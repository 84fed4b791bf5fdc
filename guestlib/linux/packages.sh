#!/bin/sh
# Makes the Debian packages, all or those that are named, in a folder:
#
#   packages.sh [FOLDER [PACKAGE …]]        the folder is build/packages unless named
#
#   vnic                    the NIC: program, unit, completions, manual pages
#   vnic-dkms               the guest's kernel module, built there by dkms
#   vnic-module             instead of vnic-dkms: the module built here, for one kernel of Debian's (RELEASE
#                           as uname -r says, default: the current one). Only where it is named
#   ibverbs-provider-vnic   the guest's rdma-core provider
#
# Needs build/vnic (make build), or the program that VNIC names, and what guestlib/linux needs. The packages' version is the ABI's
# and the commit's.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-build/packages}
shift $(($# > 0))
vnic=${VNIC:-build/vnic}
abi=$(sed -n 's/^#define VNIC_VERSION_MAJOR \([0-9]*\)U$/\1/p' guestlib/c/vnic_abi.h).$(sed -n 's/^#define VNIC_VERSION_MINOR \([0-9]*\)U$/\1/p' guestlib/c/vnic_abi.h)
version=$abi+git$(git log -1 --format=%cd --date=format:%Y%m%d).$(git rev-parse --short HEAD)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$out"
rm -f "$out"/*.deb

# control NAME ARCHITECTURE DEPENDS SUMMARY: the description is read from stdin
control() {
	mkdir -p "$tmp/$1/DEBIAN" "$tmp/$1/usr/share/doc/$1"
	cp guestlib/linux/copyright "$tmp/$1/usr/share/doc/$1/copyright"
	{
		printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: the vnic authors <vnic@localhost>\nSection: net\nPriority: optional\n' "$1" "$version" "$2"
		[ -z "$3" ] || printf 'Depends: %s\n' "$3"
		printf 'Description: %s\n' "$4"
		sed 's/^/ /'
	} >"$tmp/$1/DEBIAN/control"
}

# maintainer NAME SCRIPT: the script is read from stdin
maintainer() {
	{
		printf '#!/bin/sh\nset -e\n'
		cat
	} >"$tmp/$1/DEBIAN/$2"
	chmod 755 "$tmp/$1/DEBIAN/$2"
}

pack() { # NAME
	find "$tmp/$1" -type d -exec chmod 755 {} +
	dpkg-deb --root-owner-group -Zxz --build "$tmp/$1" "$out" >/dev/null
}

# man NAME WORDS…: a manual page of what the program says of itself
man() {
	page=$1
	shift
	"$vnic" help "$@" >"$tmp/help"
	{
		printf '.TH %s 1\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n' "$(echo "$page" | tr a-z A-Z)" "$page" "$(head -n 1 "$tmp/help" | sed 's/\\/\\e/g; s/-/\\-/g')"
		sed 's/\\/\\e/g; s/^\./\\\&./; s/-/\\-/g' "$tmp/help"
		printf '.fi\n'
	} | gzip -9n >"$tmp/vnic/usr/share/man/man1/$page.1.gz"
}

nic() {
	control vnic amd64 'passwd' 'software NIC for QEMU guests: RDMA over Falcon in PSP tunnel mode' <<-'TEXT'
		A host process that emulates a Falcon-capable NIC for QEMU guests: physical and
		virtual functions, rings in shared memory, RDMA over Falcon, PSP tunnel mode.
	TEXT
	mkdir -p "$tmp/vnic/usr/bin" "$tmp/vnic/lib/systemd/system" "$tmp/vnic/usr/share/man/man1" \
		"$tmp/vnic/usr/share/bash-completion/completions" "$tmp/vnic/usr/share/zsh/vendor-completions" "$tmp/vnic/usr/share/fish/vendor_completions.d"
	cp "$vnic" "$tmp/vnic/usr/bin/vnic"
	sed 's,/usr/local/bin/vnic,/usr/bin/vnic,; s,docs/operations.md,/usr/share/doc/vnic/operations.md,' docs/vnic.service >"$tmp/vnic/lib/systemd/system/vnic.service"
	cp -r docs/*.md docs/abi docs/img docs/labs docs/wireshark docs/vnic.example.yaml CHANGELOG.md SECURITY.md "$tmp/vnic/usr/share/doc/vnic/"
	"$vnic" completion bash >"$tmp/vnic/usr/share/bash-completion/completions/vnic"
	"$vnic" completion zsh >"$tmp/vnic/usr/share/zsh/vendor-completions/_vnic"
	"$vnic" completion fish >"$tmp/vnic/usr/share/fish/vendor_completions.d/vnic.fish"
	man vnic
	for command in $("$vnic" --help | sed -n '/^Available Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
		case $command in completion | help) ;; *) man "vnic-$command" "$command" ;; esac
	done
	# The NIC runs as a user of its own. What it reads, root writes: the configuration and, by
	# `vnic keys`, the identities, which belong to the owner of their folder.
	maintainer vnic postinst <<-'TEXT'
		if [ "$1" = configure ]; then
			id vnic >/dev/null 2>&1 || useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin vnic
			[ -d /etc/vnic ] || install -d -o root -g vnic -m 0750 /etc/vnic
			[ -d /etc/vnic/keys ] || install -d -o vnic -g vnic -m 0700 /etc/vnic/keys
		fi
		[ ! -d /run/systemd/system ] || systemctl daemon-reload
	TEXT
	maintainer vnic prerm <<-'TEXT'
		if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop vnic.service || true; fi
	TEXT
	# Keys and a configuration that somebody wrote stay, and so does the user, to whom files may belong.
	maintainer vnic postrm <<-'TEXT'
		if [ "$1" = purge ]; then
			rmdir /etc/vnic/keys /etc/vnic 2>/dev/null || true
		fi
		[ ! -d /run/systemd/system ] || systemctl daemon-reload
	TEXT
	pack vnic
}

# bind_windows NAME: the driver does not bind QEMU's ivshmem devices by itself. Whoever installs it wants
# those that carry a window bound; the driver leaves the others alone.
bind_windows() {
	mkdir -p "$tmp/$1/usr/lib/udev/rules.d"
	cat >"$tmp/$1/usr/lib/udev/rules.d/60-vnic.rules" <<-'TEXT'
		ACTION=="add", SUBSYSTEM=="pci", ATTR{vendor}=="0x1af4", ATTR{device}=="0x1110", RUN{builtin}+="kmod load vnic"
		ACTION=="add", SUBSYSTEM=="drivers", DEVPATH=="/bus/pci/drivers/vnic", ATTR{new_id}="1af4 1110"
	TEXT
}

module() {
	ko=$(make -s -C guestlib/linux module RELEASE="${RELEASE:-}")
	release=$(basename "$(dirname "$ko")")
	control "vnic-module-$release" amd64 "linux-image-$release" "driver of the vnic device for Debian's kernel $release" <<-'TEXT'
		vnic.ko, the kernel module by which a Linux guest uses a function of a vnic as an RDMA
		device, built for one kernel. The package vnic-dkms builds it for any.
	TEXT
	printf 'Conflicts: vnic-dkms\nProvides: vnic-module\n' >>"$tmp/vnic-module-$release/DEBIAN/control"
	bind_windows "vnic-module-$release"
	mkdir -p "$tmp/vnic-module-$release/lib/modules/$release/updates"
	cp "$ko" "$tmp/vnic-module-$release/lib/modules/$release/updates/"
	strip --strip-debug "$tmp/vnic-module-$release/lib/modules/$release/updates/vnic.ko"
	for script in postinst postrm; do
		maintainer "vnic-module-$release" $script <<-TEXT
			! command -v depmod >/dev/null || depmod $release
		TEXT
	done
	pack "vnic-module-$release"
}

dkms() {
	control vnic-dkms all 'dkms (>= 2.1)' 'driver of the vnic device for Linux guests (DKMS)' <<-'TEXT'
		The source of vnic.ko, the kernel module by which a Linux guest uses a function of a
		vnic as an RDMA device; dkms builds it for the guest's kernels, from 6.1 on.
	TEXT
	src=$tmp/vnic-dkms/usr/src/vnic-$version
	mkdir -p "$src"
	cp -r guestlib/linux/kernel/*.c guestlib/linux/kernel/*.h guestlib/linux/kernel/uapi guestlib/linux/kernel/Kbuild guestlib/c/vnic_abi.h "$src/"
	bind_windows vnic-dkms
	sed "s/@VERSION@/$version/" guestlib/linux/kernel/dkms.conf >"$src/dkms.conf"
	# As dh_dkms does it: for the kernel that runs and the newest one, or in a chroot for all that are there.
	maintainer vnic-dkms postinst <<-TEXT
		if [ "\$1" = configure ]; then
			/usr/lib/dkms/common.postinst vnic $version /usr/share/vnic-dkms "" "\$2"
			modprobe -q vnic || true # there is none for a kernel without headers
			id=/sys/bus/pci/drivers/vnic/new_id
			[ ! -e \$id ] || echo 1af4 1110 >\$id 2>/dev/null || true # the rule may have been faster
		fi
	TEXT
	maintainer vnic-dkms prerm <<-TEXT
		modprobe -q -r vnic || true # one that is in use stays until the next boot
		[ -z "\$(dkms status -m vnic -v $version)" ] || dkms remove -m vnic -v $version --all
	TEXT
	pack vnic-dkms
}

provider() {
	control ibverbs-provider-vnic amd64 'libc6 (>= 2.34), libibverbs1 (>= 44), libibverbs1 (<< 57)' 'rdma-core provider of the vnic device' <<-'TEXT'
		The library by which libibverbs, and so every program with RDMA verbs, uses a function of
		a vnic in a guest that has vnic.ko (vnic-dkms).
	TEXT
	to=$tmp/ibverbs-provider-vnic
	mkdir -p "$to/usr/lib/x86_64-linux-gnu/libibverbs" "$to/etc/libibverbs.d"
	so=$(make -s -C guestlib/linux provider)
	cp "$so" "$to/usr/lib/x86_64-linux-gnu/libibverbs/"
	strip --strip-unneeded "$to/usr/lib/x86_64-linux-gnu/libibverbs/"*.so
	cp guestlib/linux/provider/vnic.driver "$to/etc/libibverbs.d/"
	echo /etc/libibverbs.d/vnic.driver >"$to/DEBIAN/conffiles"
	pack ibverbs-provider-vnic
}

[ $# -gt 0 ] || set -- vnic vnic-dkms ibverbs-provider-vnic
for package; do
	case $package in
	vnic) nic ;;
	vnic-dkms) dkms ;;
	vnic-module) module ;;
	ibverbs-provider-vnic) provider ;;
	*) echo "packages.sh: $package is none of vnic, vnic-dkms, vnic-module, ibverbs-provider-vnic" >&2 && exit 1 ;;
	esac
done
ls "$out"/*.deb

#!/bin/sh
# Installs the Debian packages that the demo (`deps.sh demo`), building the Linux driver (`deps.sh
# driver`), building a kernel to debug it with as well (`deps.sh kernel`), building the driver in the
# sources of the kernel and rdma-core (`deps.sh series`), or the full test run and the benchmarks need,
# and only those that are missing. The guests' kernel is not among them: fetch.sh unpacks it into a cache
# folder. apt has to know what there is for both.
set -eu
need=''
want() { # command package
	command -v "$1" >/dev/null 2>&1 || need="$need $2"
}
what=${1:-all}
if [ "$what" = series ]; then
	want git git
	want cmake cmake
	want pkg-config pkg-config
	[ -e /usr/include/libnl3/netlink/netlink.h ] || need="$need libnl-3-dev libnl-route-3-dev"
fi
if [ "$what" = kernel ] || [ "$what" = series ]; then
	want flex flex
	want bison bison
	want bc bc
	want xz xz-utils
	[ -e /usr/include/gelf.h ] || need="$need libelf-dev"
fi
if [ "$what" != driver ]; then
	want qemu-system-x86_64 qemu-system-x86
	want iperf3 iperf3
fi
if [ "$what" != demo ]; then
	want gcc "gcc libc6-dev" # go test -race, too
	want gcc-12 gcc-12 # what Debian's kernel headers ask for
	want make make
	want strip binutils
	want python3 python3 # rdma-core's headers are made by it
	[ -e /usr/lib/x86_64-linux-gnu/libibverbs.so.1 ] || need="$need libibverbs1"
	[ -e /usr/lib/x86_64-linux-gnu/libelf.so.1 ] || need="$need libelf1" # the kernel's objtool
fi
if [ "$what" = all ]; then
	want ip iproute2
	want nsenter util-linux
	want xz xz-utils # the kernel, and modules of newer ones
	want zstd zstd # newer kernels
	want busybox busybox # udhcpc
	want ping iputils-ping
	want ib_write_bw "perftest ibverbs-providers" # Soft-RoCE, to speak to and to compare with
	want sparse sparse
	want dpdk-testpmd dpdk-dev # a driver of vhost-user that is not ours
	want tshark tshark # the test of docs/wireshark
	want tcpdump tcpdump # docs/tunnel.md
	want mmdebstrap mmdebstrap # vnic image --disk
	want fakeroot fakeroot
	want ssh-keygen openssh-client
	want mke2fs e2fsprogs
	want qemu-img qemu-utils
	want grub-mkimage grub-common
	[ -e /usr/lib/grub/i386-pc/boot.img ] || need="$need grub-pc-bin"
	want qemu-aarch64-static qemu-user-static # make cross
	want qemu-system-aarch64 qemu-system-arm # vnic image --arch arm64
	want libvirtd "libvirt-daemon-system libvirt-clients" # vnic qemu --libvirt
	want etcd etcd-server # docs/fleet.md
	want etcdctl etcd-client # its tests with failures of etcd
	want chromium chromium # the page of web.listen
fi
known() { apt-cache show linux-image-amd64 >/dev/null 2>&1; }
if [ -z "$need" ] && known; then
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	[ -n "$need" ] || need=' (none, but the package list is empty)'
	echo "missing packages:$need; run as root: apt-get update, then apt-get install -y --no-install-recommends with these" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
[ -n "$need" ] || exit 0
echo "installing$need" >&2
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $need >/dev/null

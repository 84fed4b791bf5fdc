# The first process of namespaces of its own: libvirtd with its files below a folder. It reaps what
# libvirtd leaves to it, since libvirtd waits until a guest's process is gone.
set -e
mkdir -p "$1"/{run,lib,cache,log}
cp -r /etc/libvirt "$1/etc"
rm -rf "$1/etc/qemu"
mkdir -p /var/lib/libvirt /var/cache/libvirt /var/log/libvirt
mount -t tmpfs tmpfs /run
mkdir /run/libvirt
mount --bind "$1/run" /run/libvirt
mount --bind "$1/etc" /etc/libvirt
for d in lib cache log; do mount --bind "$1/$d" /var/$d/libvirt; done
virtlogd --daemon
libvirtd &
wait

// Package image provides a stock Debian kernel and an initramfs, with one static program as its
// init, for guests to boot.
//
//	apt-get download ──► .deb ──► dpkg-deb -x ──► cache/<package>_<version>/ ──► Kernel
//	                                                     boot/vmlinuz-<release>, vmlinux-<release>
//	                                                     lib/modules/<release>/…
//	Initramfs{Kernel, Init, Modules} ──► closure over .modinfo ──► newc archive
//
// Nothing is installed. The kernel's package is unpacked into a cache folder, which several
// processes may share. It appears there complete or not at all.
//
// References: Linux Documentation/driver-api/early-userspace/buffer-format.rst
// (newc), Documentation/admin-guide/initrd.rst, Documentation/arch/x86/boot.rst (vmlinuz).
package image

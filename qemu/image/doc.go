// Package image provides a stock Debian kernel and an initramfs, with one static program as its
// init, for guests to boot.
//
//	apt-get download ──► .deb ──► dpkg-deb -x ──► cache/<package>_<version>/ ──► Kernel
//	                                                     boot/vmlinuz-<release>, vmlinux-<release>
//	                                                     lib/modules/<release>/…
//	Initramfs{Kernel, Init, Modules} ──► closure over .modinfo ──► newc archive
//
//	Packages ──► .deb ──► files of the archive
//
// Nothing is installed.
//
// # Ownership and concurrency
//
// Several processes may share a cache folder: one at a time downloads or unpacks (a lock file), and
// what it makes appears there complete or not at all. The package has no state.
//
// References: Linux Documentation/driver-api/early-userspace/buffer-format.rst
// (newc), Documentation/admin-guide/initrd.rst, Documentation/arch/x86/boot.rst (vmlinuz).
package image

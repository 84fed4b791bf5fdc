// Package image is vnic image, which makes what a guest boots: Debian's kernel, and an initramfs with
// vnic, modules and packages (qemu/image). It downloads and writes files, and starts nothing.
package image

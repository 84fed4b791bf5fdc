// Package qemu is vnic qemu: the QEMU of a guest. qemu.go writes its command line from a NIC's
// configuration, and runs it; monitor.go plugs functions into a running QEMU. Package
// github.com/falcon-vnic/vnic/qemu knows QEMU's arguments and its monitor.
package qemu

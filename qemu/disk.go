package qemu

import "path/filepath"

// Formats of disk images.
const (
	DiskRaw   = "raw"
	DiskQcow2 = "qcow2"
)

// DiskFormat returns the format of an image, judged by its file name. It does not look at the
// content: the guest writes that, and with a forged header it could make QEMU open other files of
// the host.
func DiskFormat(path string) string {
	if filepath.Ext(path) == "."+DiskQcow2 {
		return DiskQcow2
	}
	return DiskRaw
}

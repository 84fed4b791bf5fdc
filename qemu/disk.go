package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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

// Overlay makes the file at path, in format qcow2, that keeps what one guest writes to a disk. The
// disk stays as it is, and many guests can have overlays of it at once. A file that exists is left
// as it is. It needs qemu-img.
func Overlay(ctx context.Context, disk, path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	base, err := filepath.Abs(disk) // else qemu-img takes it as relative to path
	if err != nil {
		return err
	}
	if _, err := os.Stat(base); err != nil {
		return fmt.Errorf("disk of the overlay %s: %w", path, err)
	}
	out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", DiskQcow2, "-b", base, "-F", DiskFormat(disk), path).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("overlay %s: %w; install qemu-utils", path, err)
	case err != nil:
		return fmt.Errorf("overlay %s: qemu-img: %w: %s", path, err, strings.TrimSpace(string(out)))
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// driverKernel is the kernel of the driver's guests: by the test's wish, or that of
// VNIC_DRIVER_KERNEL, or Debian's current one. A wish is a release of Debian's (uname -r), "newest"
// for the newest that Debian has for this suite, or the path of a folder with an unpacked kernel.
func driverKernel(ctx context.Context, cache, wish string) (image.Kernel, error) {
	wish = cmp.Or(wish, os.Getenv("VNIC_DRIVER_KERNEL"))
	switch {
	case wish == "":
		return image.FetchKernel(ctx, cache)
	case strings.Contains(wish, "/"):
		return image.OpenKernel(wish)
	case wish == "newest":
		out, err := exec.CommandContext(ctx, "../../guestlib/linux/fetch.sh", wish).Output()
		if err != nil {
			return image.Kernel{}, fmt.Errorf("fetch.sh %s: %w", wish, err)
		}
		wish = strings.TrimSpace(string(out))
	}
	return image.FetchRelease(ctx, cache, wish)
}

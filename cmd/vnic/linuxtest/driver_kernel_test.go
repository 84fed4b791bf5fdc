package linuxtest_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// driverKernel is the kernel of the driver's guests: as the test wants it, or that of
// VNIC_DRIVER_KERNEL, or Debian's current one. A wanted is a release of Debian's (uname -r), "newest"
// for the newest that Debian has for this suite, or the path of a folder with an unpacked kernel.
func driverKernel(ctx context.Context, cache, wanted string) (image.Kernel, error) {
	wanted = cmp.Or(wanted, os.Getenv("VNIC_DRIVER_KERNEL"))
	switch {
	case wanted == "":
		return image.FetchKernel(ctx, cache)
	case strings.Contains(wanted, "/"):
		return image.OpenKernel(wanted)
	case wanted == "newest":
		out, err := exec.CommandContext(ctx, "../../../guestlib/linux/fetch.sh", wanted).Output()
		if err != nil {
			return image.Kernel{}, fmt.Errorf("fetch.sh %s: %w", wanted, err)
		}
		wanted = strings.TrimSpace(string(out))
	}
	return image.FetchRelease(ctx, cache, wanted)
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// testPackages are what tests have in their guests beside image.Packages.
var testPackages = []string{"ethtool", "pciutils", "strace", "systemd", "diffutils", "fio", "libfabric-bin", "nfs-kernel-server", "python3-pyverbs", "ucx-utils"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cache, err := image.DefaultCache()
	if err == nil {
		_, err = image.FetchKernel(ctx, cache)
	}
	for _, release := range os.Args[1:] {
		if err == nil {
			_, err = image.FetchRelease(ctx, cache, release)
		}
	}
	if err == nil {
		_, err = image.FetchPackages(ctx, filepath.Dir(cache), append(testPackages, image.Packages...))
	}
	if err == nil {
		_, err = image.FetchRelease(ctx, cache, string(image.ARM64))
	}
	if err == nil {
		_, err = image.ARM64.FetchPackages(ctx, filepath.Dir(cache), image.Packages)
	}
	if err == nil {
		_, err = image.FetchDebian(ctx, filepath.Dir(cache), "bookworm", "", nil, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

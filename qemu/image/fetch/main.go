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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cache, err := image.DefaultCache()
	if err == nil {
		_, err = image.FetchKernel(ctx, cache)
	}
	if err == nil {
		_, err = image.FetchPackages(ctx, filepath.Dir(cache), append([]string{"strace", "systemd"}, image.Packages...)) // with what tests add
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

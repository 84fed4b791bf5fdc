package lab

import (
	"context"
	"net/netip"
	"os"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

var (
	Lock        = lock
	Folder      = folder
	WithSymbols = withSymbols
	Recipe      = recipe
)

// OpenImage opens an image in a folder that keeps so many.
func OpenImage(ctx context.Context, dir string, kept int, name string, fill func(part string) error) (path string, inUse *os.File, err error) {
	return images{dir, kept}.open(ctx, name, fill)
}

// WaitForAddress waits for the address of a guest of a lab.
func WaitForAddress(ctx context.Context, lab, guest string, a netip.Addr) bool {
	m := &machine{Machine: labfile.Machine{Name: guest}, Lab: lab, Address: a}
	return m.waitForAddress(ctx)
}

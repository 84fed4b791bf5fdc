package lab

import (
	"context"
	"os"
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

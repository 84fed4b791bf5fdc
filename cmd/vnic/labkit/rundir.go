package labkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// longestTemp is the longest path of the temporary folder with which the paths of sockets are not
// too long (package config checks those).
const longestTemp = 60

// RunDir creates a folder for sockets in the temporary folder, or in /tmp if the temporary
// folder's path is too long. Its name begins with prefix. It is locked while this process runs. The
// folders of processes that were killed are not locked, and the next call with their prefix removes
// them.
func RunDir(prefix string) (dir string, remove func() error, err error) {
	temp := os.TempDir()
	if len(temp) > longestTemp {
		temp = "/tmp"
	}
	removeDead(temp, prefix)
	hidden, err := os.MkdirTemp(temp, "."+prefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := lockDir(hidden)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(hidden))
	}
	// The folder gets the name that others look for only once it is locked.
	dir = filepath.Join(filepath.Dir(hidden), strings.TrimPrefix(filepath.Base(hidden), "."))
	if err := os.Rename(hidden, dir); err != nil {
		return "", nil, errors.Join(err, lock.Close(), os.Remove(hidden))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// removeDead removes the folders of processes that have ended, except for those of other users.
func removeDead(tmp, prefix string) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, prefix+"*"))
	for _, d := range dirs {
		if lock, err := lockDir(d); err == nil {
			_ = os.RemoveAll(d)
			lock.Close()
		}
	}
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

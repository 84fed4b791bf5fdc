package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replace puts a file with these bytes and this mode in the place of path. If root writes it, the folder's
// owner gets it.
func Replace(path string, b []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask is
	}
	if err == nil {
		err = GiveLike(dir, f.Name())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// GiveLike gives files to the owner of dir if root writes them: whoever reads them, such as a NIC its
// keys, may run as that user.
func GiveLike(dir string, paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	for _, path := range paths {
		err = errors.Join(err, os.Lchown(path, int(sys.Uid), int(sys.Gid)))
	}
	return err
}

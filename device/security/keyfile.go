package security

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenKeyLog opens the file for appending. The log receives all keys, so a file is refused if
// another user created it, or can read or replace it.
func OpenKeyLog(path string) (*os.File, error) {
	f, err := openPrivate(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("psp.keylog: %w", err)
	}
	return f, nil
}

// CheckKeyLog reports whether a key log can be written there, without creating it.
func CheckKeyLog(path string) error {
	f, err := openPrivate(path, unix.O_WRONLY)
	if errors.Is(err, os.ErrNotExist) {
		dir, derr := openDirectory(filepath.Dir(path))
		if derr == nil {
			if err = unix.Faccessat(int(dir.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
				err = &os.PathError{Op: "write to", Path: dir.Name(), Err: err}
			}
			_ = dir.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("psp.keylog: %w", err)
	}
	if f != nil {
		_ = f.Close()
	}
	return nil
}

func openPrivate(path string, flags int) (*os.File, error) {
	dir, err := openDirectory(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(path), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			err = errors.New("it is a symbolic link: name the file itself")
		}
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if err := private(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// private checks that a file is regular, is accessible to its owner only, belongs to this user and
// has no hard links.
func private(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is not a regular file", f.Name())
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to the one who runs vnic, %d: remove it, or name another", f.Name(), st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s has mode %04o, so others may read keys from it: chmod 600 it, or name another", f.Name(), st.Mode&0o7777)
	case st.Nlink != 1:
		return fmt.Errorf("%s has %d names (hard links): remove it, or name another", f.Name(), st.Nlink)
	}
	return nil
}

// openDirectory opens a folder in which only this user, or root, can change names. Parent folders
// may be writable by others if they are sticky, like /tmp.
func openDirectory(path string) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, err
	}
	for p, allowed := path, uint32(0); ; p, allowed = filepath.Dir(p), unix.S_ISVTX {
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return nil, &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		if owner := int(st.Uid); owner != 0 && owner != os.Geteuid() || st.Mode&0o022 != 0 && st.Mode&allowed == 0 {
			return nil, fmt.Errorf("folder %s belongs to or can be written by others (user %d, mode %04o), who could put a file of theirs there: use a folder of your own (mkdir -m 700)", p, st.Uid, st.Mode&0o7777)
		}
		if p == filepath.Dir(p) {
			break
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

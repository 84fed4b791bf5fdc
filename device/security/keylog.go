package security

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// KeyLog writes the keys of all SAs, so that a capture can be decrypted. It exists only if the
// configuration asks for it. A nil KeyLog writes nothing.
//
// A separate goroutine writes, so that a slow disk does not delay a shard. After the first error
// nothing more is written. Any goroutine may add lines.
type KeyLog struct {
	w      io.WriteCloser
	failed func(error)
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	waiting []byte // lines to be written
	end     bool
	broken  bool
}

// maxKeyLog bounds the bytes that wait to be written: some 100 000 keys.
const maxKeyLog = 16 << 20

// NewKeyLog returns a log that owns w. failed is called at most once, from another goroutine.
func NewKeyLog(w io.WriteCloser, failed func(error)) *KeyLog {
	l := &KeyLog{w: w, failed: failed, done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *KeyLog) run() {
	defer close(l.done)
	for {
		b, overrun := l.next()
		if b == nil {
			return
		}
		_, err := l.w.Write(b)
		if err == nil && overrun {
			err = errors.New("the disk did not keep up")
		}
		if err != nil {
			l.failed(err)
			return
		}
	}
}

// next waits for lines; nil means the end. overrun reports that later lines were lost.
func (l *KeyLog) next() (b []byte, overrun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) == 0 && !l.end {
		l.changed.Wait()
	}
	b, l.waiting = l.waiting, nil
	return b, l.broken
}

// sa queues one line: direction (rx: the peer seals with the key, tx: we do), SPI, PSP version,
// key, the peer's name, and use.
func (l *KeyLog) sa(direction, peer string, u Use, sa *cm.SA) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken = l.broken || len(l.waiting) > maxKeyLog; l.broken {
		return
	}
	l.waiting = fmt.Appendf(l.waiting, "%s %08x %d %x peer=%s tenant=%d class=%v\n",
		direction, sa.SPI, sa.Version, sa.Key, peer, u.Tenant, u.Class)
	l.changed.Signal()
}

// Close writes the remaining lines and closes the file.
func (l *KeyLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.end = true
	l.changed.Signal()
	l.mu.Unlock()
	<-l.done
	return l.w.Close()
}

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

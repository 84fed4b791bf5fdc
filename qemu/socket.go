package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// maxSocketPath is sizeof(sockaddr_un.sun_path) less the terminating zero.
const maxSocketPath = 107

// unixSocket is a listening unix socket with its file.
type unixSocket struct {
	*net.UnixListener
	path string
	file os.FileInfo // nil: another process's, which removes it
}

// Socket is a listening unix socket that this process only keeps: another
// accepts on a copy of its descriptor.
type Socket struct{ sock *unixSocket }

// KeepSocket listens at path and accepts nobody.
func KeepSocket(path string) (*Socket, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, err
	}
	return &Socket{sock}, nil
}

// File returns a copy of the descriptor, which is the caller's.
func (s *Socket) File() (*os.File, error) { return s.sock.File() }

// Close stops listening and removes the socket file.
func (s *Socket) Close() error { return s.sock.Close() }

// keptSocket is the other end of a Socket: a descriptor that listens at path.
func keptSocket(f *os.File, path string) (*unixSocket, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket %s: the descriptor given for it does not listen: %w", path, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().String() != path {
		return nil, errors.Join(fmt.Errorf("socket %s: the descriptor given for it listens at %s", path, l.Addr()), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	return &unixSocket{UnixListener: ul, path: path}, nil
}

// listenUnixSocket listens on path. A socket file left behind by a process that
// is gone is replaced; one somebody listens on, or a file of another kind, is
// not touched.
func listenUnixSocket(path string) (*unixSocket, error) {
	if path == "" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d; choose a shorter directory", path, len(path), maxSocketPath)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	ln, err := socketMode.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, ok := ln.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("socket %s: it is a %T", path, ln), ln.Close())
	}
	l.SetUnlinkOnClose(false) // ours only if nobody has replaced it: see Close
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close())
	}
	return &unixSocket{l, path, fi}, nil
}

// socketMode makes sockets that no others than their owner and, if the umask lets it, their group can
// connect to: whoever does is taken for the guest. The mode that a socket has before it is bound is
// that of its file, less the umask, so that there is no moment with another.
var socketMode = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0o660) })
	return errors.Join(err, failed)
}}

func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("socket %s: a %s is in the way; remove it or choose another path", path, kindOf(fi.Mode()))
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("socket %s: another process listens on it; stop that process or choose another path", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s exists and cannot be probed: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket %s: %w", path, err)
	}
	return nil
}

func kindOf(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m.IsRegular():
		return "regular file"
	}
	return "file that is no socket"
}

// Close stops listening and removes the socket file unless it is another's by
// now.
func (s *unixSocket) Close() error {
	err := s.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if s.file == nil {
		return err
	}
	if fi, serr := os.Lstat(s.path); serr == nil && os.SameFile(fi, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

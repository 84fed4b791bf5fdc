package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// maxSocketPath is sizeof(sockaddr_un.sun_path) without the terminating zero.
const maxSocketPath = 107

// unixSocket is a listening unix socket with its file.
type unixSocket struct {
	*net.UnixListener
	path string
	file os.FileInfo // nil: the file belongs to another process, which removes it
}

// Socket is a listening unix socket that this process only holds open. Another process accepts on a
// copy of its descriptor.
type Socket struct{ sock *unixSocket }

// KeepSocket listens at path but accepts no connections.
func KeepSocket(path string) (*Socket, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, err
	}
	return &Socket{sock}, nil
}

// File returns a copy of the descriptor, which the caller owns.
func (s *Socket) File() (*os.File, error) { return s.sock.File() }

// Close stops listening and removes the socket file.
func (s *Socket) Close() error { return s.sock.Close() }

// keptSocket returns the listener of a Socket that another process keeps: f is a descriptor that
// listens at path.
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

// listenUnixSocket listens on path. It replaces a socket file that a dead process left behind. It
// fails, and leaves the file alone, if another process listens on it or the file is no socket.
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
	l.SetUnlinkOnClose(false) // Close removes the file, unless another process has replaced it
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close())
	}
	return &unixSocket{l, path, fi}, nil
}

// socketMode creates sockets to which only their owner and, if the umask allows it, their group can
// connect, because any process that connects is treated as the guest. It sets the mode before the
// socket is bound: the socket file then gets that mode, less the umask, and never has another.
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

// Close stops listening. It removes the socket file unless another process has replaced it.
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

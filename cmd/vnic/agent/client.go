package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to a port on which a guest listens, by the vsock socket of its NIC (attach.vsock).
func Dial(ctx context.Context, socket string, port uint32) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the guest's vsock: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = fmt.Fprintf(c, "CONNECT %d\n", port); err == nil {
		err = readOK(c)
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("port %d of the guest's vsock: %w", port, err)
	}
	return c, nil
}

// readOK reads the line by which the NIC says that the guest has answered, and no more.
func readOK(c net.Conn) error {
	var line []byte
	for b := make([]byte, 1); len(line) < 32; line = append(line, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			return errors.New("nobody listens there: is the guest up, and does its agent run (vnic guest agent)?")
		}
		if b[0] == '\n' {
			if strings.HasPrefix(string(line), "OK ") {
				return nil
			}
			break
		}
	}
	return fmt.Errorf("an answer that begins %q", line)
}

// Run runs a command with these standard streams, and returns its exit status. If in is a terminal and
// so is out, the command gets one.
func Run(c net.Conn, command []string, in io.Reader, out, errs io.Writer) (status int, err error) {
	s := &stream{rw: c}
	r := request{Command: command}
	terminal, isTerminal := in.(*os.File)
	isTerminal = isTerminal && size(terminal) != nil && isTerminalWriter(out)
	if isTerminal {
		w := size(terminal)
		r.Terminal, r.Rows, r.Columns, r.Env = true, w.Row, w.Col, []string{"TERM=" + os.Getenv("TERM")}
	}
	if err := s.sendRequest(r); err != nil {
		return 0, err
	}
	if isTerminal {
		restore, err := Raw(terminal)
		if err != nil {
			return 0, err
		}
		defer restore()
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, unix.SIGWINCH)
		defer signal.Stop(changed)
		go func() {
			for range changed {
				if w := size(terminal); w != nil {
					_ = s.send(kindWindow, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, w.Row), w.Col))
				}
			}
		}()
	}
	go func() { // it ends with this process, if nobody types any more
		if in != nil {
			_, _ = io.Copy(writer{s, kindStdin}, in)
		}
		_ = s.send(kindStdin, nil)
	}()
	return s.follow(out, errs)
}

// follow writes what the guest sends until the request is done.
func (s *stream) follow(out, errs io.Writer) (status int, err error) {
	for {
		kind, content, err := s.receive()
		if err != nil {
			return 0, fmt.Errorf("the guest ended before the command: %w", err)
		}
		switch kind {
		case kindStdout:
			_, err = out.Write(content)
		case kindStderr:
			_, err = errs.Write(content)
		case kindExit:
			if len(content) != 4 {
				return 0, errors.New("the guest's answer has no exit status")
			}
			return int(int32(binary.BigEndian.Uint32(content))), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Get copies a file or folder of the guest.
func Get(c net.Conn, from, to string) error {
	s := &stream{rw: c}
	if err := s.sendRequest(request{Get: from}); err != nil {
		return err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := usual.unpack(bufio.NewReader(r), to)
		r.CloseWithError(err)
		done <- err
	}()
	err := s.done(w)
	w.CloseWithError(err) // nil: the archive is whole
	if unpacked := <-done; err == nil || unpacked != nil && !errors.Is(unpacked, err) {
		err = unpacked
	}
	return err
}

// Put copies a file or folder to the guest.
func Put(c net.Conn, from, to string) error {
	s := &stream{rw: c}
	if err := s.sendRequest(request{Put: to}); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		err := pack(writer{s, kindStdin}, from)
		if err == nil {
			err = s.send(kindStdin, nil)
		} else {
			c.Close() // the guest must not take the part for the whole
		}
		sent <- err
	}()
	err := s.done(io.Discard)
	if err == nil {
		return nil // the guest has the whole archive
	}
	select {
	case why := <-sent:
		return errors.Join(why, err)
	default:
		return err
	}
}

// done waits until the guest has done a request about files.
func (s *stream) done(out io.Writer) error {
	var said strings.Builder
	status, err := s.follow(out, &limited{&said})
	if err == nil && status != 0 {
		err = fmt.Errorf("the guest: %s", strings.TrimSpace(said.String()))
	}
	return err
}

// limited keeps the beginning of an error.
type limited struct{ *strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	const most = 1000
	l.Builder.Write(p[:max(0, min(len(p), most-l.Len()))])
	return len(p), nil
}

// size returns the size of a terminal, nil if f is none.
func size(f *os.File) *unix.Winsize {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return nil
	}
	return w
}

func isTerminalWriter(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && size(f) != nil
}

// Raw lets a program at the other end of a connection have all keys of a terminal.
func Raw(f *os.File) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t := *before // as cfmakeraw(3)
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &t); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, before) }, nil
}

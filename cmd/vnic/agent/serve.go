package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitFailed is the exit status of what could not be done, and exitNotFound that of a command that
// does not exist, as in a shell.
const (
	exitFailed   = 1
	exitNotFound = 127
)

// Serve serves requests from l until l is closed. In a guest each client is the host.
func Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// serve carries out the request of a stream.
func serve(rw io.ReadWriter) {
	s := &stream{rw: rw}
	kind, content, err := s.receive()
	var r request
	if err != nil || kind != kindRequest || json.Unmarshal(content, &r) != nil {
		return
	}
	status := 0
	switch {
	case r.Get != "":
		err = pack(writer{s, kindStdout}, r.Get)
	case r.Put != "":
		in, stop := s.stdin(nil)
		err = usual.unpack(in, r.Put)
		stop()
	case len(r.Command) > 0:
		status, err = run(s, r)
	default:
		err = errors.New("an empty request")
	}
	if err != nil {
		if status == 0 {
			status = exitFailed
		}
		fmt.Fprintf(writer{s, kindStderr}, "%v\n", err)
	}
	_ = s.send(kindExit, binary.BigEndian.AppendUint32(nil, uint32(status)))
}

// stdin returns what the host sends, until it sends its end. It receives frames until the stream ends;
// window, if not nil, gets those about the terminal. stop makes it discard the rest.
func (s *stream) stdin(window func(rows, columns uint16)) (in io.Reader, stop func()) {
	r, w := io.Pipe()
	go func() {
		for {
			kind, content, err := s.receive()
			switch {
			case err != nil:
				w.CloseWithError(io.ErrUnexpectedEOF)
				return
			case kind == kindStdin && len(content) == 0:
				w.Close()
			case kind == kindStdin:
				_, _ = w.Write(content) // it may have been closed by stop
			case kind == kindWindow && len(content) == 4 && window != nil:
				window(binary.BigEndian.Uint16(content), binary.BigEndian.Uint16(content[2:]))
			}
		}
	}()
	return r, func() { r.Close() }
}

// run runs a command and returns its exit status.
func run(s *stream, r request) (status int, err error) {
	cmd := exec.Command(r.Command[0], r.Command[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	if home := os.Getenv("HOME"); home != "" {
		cmd.Dir = home
	}
	if r.Terminal {
		err = onTerminal(s, r, cmd)
	} else {
		in, stop := s.stdin(nil)
		defer stop()
		err = piped(s, cmd, in)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return shellStatus(exit), nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return exitNotFound, err
	}
	return 0, err
}

// piped runs a command whose standard streams are frames. A command that does not read all of its
// input is not waited for.
func piped(s *stream, cmd *exec.Cmd, in io.Reader) error {
	to, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = writer{s, kindStdout}, writer{s, kindStderr}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(to, in)
		to.Close()
	}()
	return cmd.Wait()
}

// shellStatus returns the status of a command as a shell has it.
func shellStatus(e *exec.ExitError) int {
	if w, ok := e.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return e.ExitCode()
}

// onTerminal runs a command on a pseudo terminal.
func onTerminal(s *stream, r request, cmd *exec.Cmd) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	defer master.Close()
	resize := func(rows, columns uint16) {
		_ = unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	resize(r.Rows, r.Columns)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		slave.Close()
		return err
	}
	in, stop := s.stdin(func(rows, columns uint16) {
		_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	defer stop()
	slave.Close()
	go func() { _, _ = io.Copy(master, in) }()
	// It ends with EIO when the last program has closed the terminal.
	_, _ = io.Copy(writer{s, kindStdout}, master)
	return cmd.Wait()
}

// openTerminal returns both sides of a new pseudo terminal.
func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	return master, slave, nil
}

package fdpass

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// maxFDs is SCM_MAX_FD, the largest number that the kernel passes with one message.
const maxFDs = 253

// FDs is a list of received descriptors. The zero value is empty.
type FDs struct{ list []int }

// Len returns the number of descriptors left.
func (f *FDs) Len() int { return len(f.list) }

// Take removes and returns the first descriptor, or -1 if there is none. The caller owns it.
func (f *FDs) Take() int {
	if len(f.list) == 0 {
		return -1
	}
	fd := f.list[0]
	f.list = f.list[1:]
	return fd
}

// Add appends a descriptor, which f then owns. A negative one is none.
func (f *FDs) Add(fd int) {
	if fd >= 0 {
		f.list = append(f.list, fd)
	}
}

// Close closes the descriptors that were not taken. It may block on whoever passed them: close(2)
// of a file on FUSE does.
func (f *FDs) Close() {
	for _, fd := range f.list {
		_ = unix.Close(fd)
	}
	f.list = nil
}

// ReadFull fills b and appends the descriptors that came with it. A stream socket may deliver
// descriptors with any read; more than limit are an error. io.EOF means that the other side closed
// the connection before the first byte. The descriptors of a failed read are in f too.
func (f *FDs) ReadFull(c *net.UnixConn, b []byte, limit int) error {
	oob := make([]byte, unix.CmsgSpace(4*min(limit, maxFDs)))
	for got := 0; got < len(b); {
		n, oobn, flags, _, err := c.ReadMsgUnix(b[got:], oob)
		if perr := f.add(oob[:oobn]); perr != nil {
			return perr
		}
		switch {
		case errors.Is(err, io.EOF) && got > 0:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case flags&unix.MSG_CTRUNC != 0 || len(f.list) > limit:
			return fmt.Errorf("more than %d descriptors were passed", limit)
		}
		got += n
	}
	return nil
}

// WriteAll sends b with copies of descriptors. The caller keeps ownership of fds.
func WriteAll(c *net.UnixConn, b []byte, fds ...int) error {
	var oob []byte
	if len(fds) != 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err != nil {
		return err
	}
	if n == len(b) {
		return nil
	}
	_, err = c.Write(b[n:])
	return err
}

func (f *FDs) add(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fmt.Errorf("passed descriptors: %w", err)
		}
		f.list = append(f.list, got...)
	}
	return nil
}

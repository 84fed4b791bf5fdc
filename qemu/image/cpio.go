package image

import (
	"fmt"
	"io"
)

// cpioWriter writes a newc archive as Linux unpacks it into its root file
// system. Entries must come parents first.
type cpioWriter struct {
	w   io.Writer
	n   int64 // bytes written
	ino int
	err error
}

// File types of a newc mode.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioChar = 0o020000
	cpioLink = 0o120000
)

type cpioEntry struct {
	name         string // without leading slash
	mode         uint32 // type and permissions
	size         int64
	major, minor uint32 // of a device node
}

// add writes an entry and size bytes of body.
func (c *cpioWriter) add(e cpioEntry, body io.Reader) {
	if e.size>>32 != 0 {
		c.fail(fmt.Errorf("%s: %d bytes, a newc entry holds less than 4 GiB", e.name, e.size))
	}
	c.ino++
	c.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, e.mode, 0, 0, 1, 0, e.size, 0, 0, e.major, e.minor, len(e.name)+1, 0, e.name)
	c.pad()
	if c.err == nil {
		n, err := io.Copy(c.w, io.LimitReader(body, e.size))
		c.n += n
		if err == nil && n != e.size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			c.fail(fmt.Errorf("%s: %w", e.name, err))
		}
	}
	c.pad()
}

// close writes the trailer and returns the first error of all writes.
func (c *cpioWriter) close() error {
	c.ino = -1
	c.add(cpioEntry{name: "TRAILER!!!"}, nil)
	return c.err
}

func (c *cpioWriter) pad() {
	c.printf("%s", "\x00\x00\x00"[:-c.n&3])
}

func (c *cpioWriter) printf(format string, a ...any) {
	if c.err == nil {
		n, err := fmt.Fprintf(c.w, format, a...)
		c.n += int64(n)
		c.fail(err)
	}
}

func (c *cpioWriter) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

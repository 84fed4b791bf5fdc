package vfiouser

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Client is a vfio-user client, the peer of Serve. Its methods may be called from several
// goroutines; all but Post and posted writes wait for the reply. After an error that is not a
// unix.Errno the connection must not be used any more.
type Client struct {
	Server Capabilities // of the server

	mu    sync.Mutex
	conn  *net.UnixConn
	limit time.Duration
	buf   []byte
	id    uint16
}

// NewClient exchanges greetings with the server on conn. It owns conn, also when it fails. limit is
// the time limit of each reply; 0: none.
func NewClient(conn *net.UnixConn, limit time.Duration) (*Client, error) {
	c := &Client{conn: conn, limit: limit, buf: make([]byte, maxMessage)}
	g := Greeting{Major: versionMajor, Minor: versionMinor, Capabilities: Capabilities{MaxFDs: MaxFDs, MaxTransfer: MaxTransfer, MaxMaps: MaxMaps, PageSizes: 4096}}
	body, err := c.Call(Version, g.Append(nil))
	if err == nil {
		g, err = ParseGreeting(body)
	}
	if err == nil && (g.Major != versionMajor || g.Minor > versionMinor) {
		err = fmt.Errorf("vfio-user VERSION: the server speaks %d.%d", g.Major, g.Minor)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.Server = g.Capabilities
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Post sends a message that needs no reply.
func (c *Client) Post(cmd Command, body []byte, fds ...int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(cmd, FlagNoReply, body, fds)
}

// Call sends a message and returns the body of the reply, which is valid until the next call. If
// the server replies with an errno, the error is a unix.Errno.
func (c *Client) Call(cmd Command, body []byte, fds ...int) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, got, err := c.call(cmd, body, fds)
	got.Close()
	return body, err
}

func (c *Client) send(cmd Command, flags uint32, body []byte, fds []int) error {
	c.id++
	if c.limit > 0 {
		_ = c.conn.SetDeadline(time.Now().Add(c.limit))
	}
	return writeMessage(c.conn, Header{ID: c.id, Command: cmd, Flags: flags}, body, fds...)
}

func (c *Client) call(cmd Command, body []byte, fds []int) (_ []byte, got fdpass.FDs, err error) {
	if err := c.send(cmd, 0, body, fds); err != nil {
		return nil, got, err
	}
	m, err := readMessage(c.conn, c.buf)
	if err != nil {
		return nil, got, err
	}
	if m.ID != c.id || m.Command != cmd || m.Flags&typeMask != FlagReply {
		m.close()
		return nil, got, fmt.Errorf("vfio-user %v: the answer is to another message: %v, id %d", cmd, m.Command, m.ID)
	}
	if m.Flags&FlagError != 0 {
		m.close()
		return nil, got, unix.Errno(m.Errno)
	}
	return m.body, m.fds, nil
}

// Region returns the description of a region and its file, or NoFile. The caller owns the file.
func (c *Client) Region(index uint32) (r RegionInfo, file int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ask := RegionInfo{Index: index}
	body, fds, err := c.call(GetRegionInfo, ask.Append(nil), nil)
	if err == nil {
		r, _, err = ParseRegionInfo(body)
	}
	file = fds.Take()
	fds.Close()
	return r, file, err
}

// Read reads from a region.
func (c *Client) Read(region uint32, off uint64, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := Access{off, region, uint32(len(b))}
	body, fds, err := c.call(RegionRead, a.Append(nil), nil)
	fds.Close()
	if err != nil {
		return err
	}
	_, data, err := ParseAccess(body)
	if err != nil || len(data) != len(b) {
		return fmt.Errorf("vfio-user REGION_READ: %d bytes came, %d were asked (%w)", len(data), len(b), err)
	}
	copy(b, data)
	return nil
}

// Read32 reads a 32-bit word.
func (c *Client) Read32(region uint32, off uint64) (uint32, error) {
	var b [4]byte
	err := c.Read(region, off, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// Write writes to a region. Unless posted is set it waits for the reply.
func (c *Client) Write(region uint32, off uint64, b []byte, posted bool) error {
	a := Access{off, region, uint32(len(b))}
	body := append(a.Append(nil), b...)
	if posted {
		return c.Post(RegionWrite, body)
	}
	_, err := c.Call(RegionWrite, body)
	return err
}

// Map maps memory. If file is NoFile the server cannot access it.
func (c *Client) Map(m Map, file int) error {
	var fds []int
	if file != NoFile {
		fds = []int{file}
	}
	_, err := c.Call(DMAMap, m.Append(nil), fds...)
	return err
}

// Unmap unmaps memory.
func (c *Client) Unmap(r Range) error {
	u := Unmap{Range: r}
	_, err := c.Call(DMAUnmap, u.Append(nil))
	return err
}

// SetIRQs sets the eventfds of count vectors from start on. Without fds it removes theirs.
func (c *Client) SetIRQs(irq, start, count uint32, fds ...int) error {
	for len(fds) > MaxFDs {
		if err := c.SetIRQs(irq, start, MaxFDs, fds[:MaxFDs]...); err != nil {
			return err
		}
		start, count, fds = start+MaxFDs, count-MaxFDs, fds[MaxFDs:]
	}
	q := IRQSet{IRQDataEventfd | IRQTrigger, irq, start, count}
	_, err := c.Call(SetIRQs, q.Append(nil), fds...)
	return err
}

// Reset resets the device.
func (c *Client) Reset() error {
	_, err := c.Call(Reset, nil)
	return err
}

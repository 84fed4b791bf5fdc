package guestlib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
)

// target is a parsed device URL.
type target struct {
	scheme   string // "vsock", "unix" or "pci"
	cid      uint32
	port     uint32
	path     string
	address  string // of a PCI device; "": the first device
	memory   string // memory file of a vsock client on the NIC's own host; "": guest memory
	function FunctionID
}

// CheckURL returns the error that Open would return for an invalid device URL, without opening the
// device.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}

func parseURL(s string) (target, error) {
	bad := func(why string) (target, error) {
		return target{}, invalid("device URL %q: %s; write vsock://2:7000 or pci:// in a guest, or unix:///path/to/socket beside the NIC, with ?function=pf0.vf1 if more than one function is yours", s, why)
	}
	u, err := url.Parse(s)
	if err != nil {
		return bad("not a URL")
	}
	t := target{scheme: u.Scheme}
	for key, values := range u.Query() {
		if key == "memory" && len(values) == 1 && u.Scheme == "vsock" {
			t.memory = values[0]
			continue
		}
		if key != "function" || len(values) != 1 {
			return bad("unknown or repeated parameter " + strconv.Quote(key))
		}
		if t.function, err = ParseFunctionID(values[0]); err != nil {
			return target{}, fmt.Errorf("device URL %q: %w", s, err)
		}
	}
	if !u.Query().Has("function") {
		t.function = AssignedFunction
	}
	switch u.Scheme {
	case "vsock":
		cid, err := strconv.ParseUint(u.Hostname(), 10, 32)
		if err != nil {
			return bad("the CID is not a number")
		}
		port := uint64(abi.Port)
		if u.Port() != "" {
			if port, err = strconv.ParseUint(u.Port(), 10, 32); err != nil {
				return bad("the port is not a number")
			}
		}
		if u.Path != "" && u.Path != "/" {
			return bad("a vsock URL has no path")
		}
		t.cid, t.port = uint32(cid), uint32(port)
	case "unix":
		if u.Host != "" || u.Path == "" {
			return bad("the socket path is not absolute")
		}
		t.path = u.Path
	case "pci":
		if u.Host != "" || strings.Contains(strings.Trim(u.Path, "/"), "/") {
			return bad("a PCI device is written as pci:///0000:00:08.0, or pci:// for the first")
		}
		t.address = strings.Trim(u.Path, "/")
	default:
		return bad("the scheme is not vsock, unix or pci")
	}
	return t, nil
}

// Dial connects to the device of a URL like Open and creates memory for it, but sends no hello. It
// is for tools that implement the ABI themselves. It returns the function that the URL names.
func Dial(ctx context.Context, url string, memory int) (net.Conn, arena.Source, FunctionID, error) {
	t, err := parseURL(url)
	if err != nil {
		return nil, nil, 0, err
	}
	conn, src, err := dial(ctx, t, memory, nil)
	return conn, src, t.function, err
}

// Redial opens another stream to a device of Dial, with the memory of the first. The previous
// stream must have ended.
func Redial(ctx context.Context, url string, src arena.Source) (net.Conn, error) {
	t, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return redial(ctx, t, src, nil)
}

// connector is Options.Connect.
type connector = func(context.Context) (*net.UnixConn, error)

// dial connects to the device and creates the memory for it.
func dial(ctx context.Context, t target, memory int, connect connector) (net.Conn, arena.Source, error) {
	if t.scheme == "unix" {
		return dialUnix(ctx, t.path, memory, connect)
	}
	if t.scheme == "pci" {
		return dialPCI(ctx, t, memory)
	}
	if t.memory != "" {
		return dialWithFile(ctx, t)
	}
	conn, err := dialVsock(ctx, t.cid, t.port)
	if err != nil {
		return nil, nil, err
	}
	return conn, arena.NewGuestRAM(memory), nil
}

// dialVsock connects by AF_VSOCK.
func dialVsock(ctx context.Context, cid, port uint32) (net.Conn, error) {
	return whenAnswered(func() (net.Conn, error) { return dialVsockOnce(ctx, cid, port) })
}

// whenAnswered dials until the host answers, for control.OpenTimeout and the dial that this ends
// in. The kernel gives up after 2 seconds, but a NIC that failed repeatedly needs longer to start
// again. A host where nobody listens answers, so that this error comes at once.
func whenAnswered(dial func() (net.Conn, error)) (net.Conn, error) {
	for begun := time.Now(); ; {
		conn, err := dial()
		if !errors.Is(err, unix.ETIMEDOUT) || time.Since(begun) >= control.OpenTimeout {
			return conn, err
		}
	}
}

// dialVsockOnce connects if the host answers within the kernel's 2 seconds. The vsock library's Dial
// takes no context, so a cancelled dial ends in the background.
func dialVsockOnce(ctx context.Context, cid, port uint32) (net.Conn, error) {
	type result struct {
		conn *vsock.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := vsock.Dial(cid, port, nil)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, fmt.Errorf("vsock %d:%d: %w; is the NIC running, has the guest a vsock device, and is vmw_vsock_virtio_transport loaded?", cid, port, r.err)
		}
		return r.conn, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				r.conn.Close()
			}
		}()
		return nil, fmt.Errorf("vsock %d:%d: %w", cid, port, ctx.Err())
	}
}

// dialWithFile connects over the kernel's vsock on the NIC's own host; the NIC's configuration
// names the same file.
func dialWithFile(ctx context.Context, t target) (net.Conn, arena.Source, error) {
	src, err := arena.OpenFile(t.memory)
	if err != nil {
		return nil, nil, err
	}
	conn, err := dialVsock(ctx, t.cid, t.port)
	if err != nil {
		return nil, nil, errors.Join(err, src.Close())
	}
	return conn, src, nil
}

// preambleMagic starts the memory message of a bare client.
const preambleMagic = "VNICMEM1"

const preambleTimeout = 10 * time.Second

// redial connects again, with the existing memory.
func redial(ctx context.Context, t target, src arena.Source, connect connector) (net.Conn, error) {
	if m, ok := src.(*arena.Memfd); ok && t.scheme == "unix" {
		return connectUnix(ctx, t.path, m, connect)
	}
	if m, ok := src.(*pciMemory); ok {
		return m.pci.Dial(ctx)
	}
	return dialVsock(ctx, t.cid, t.port)
}

func dialUnix(ctx context.Context, path string, memory int, connect connector) (net.Conn, arena.Source, error) {
	src, err := arena.NewMemfd(memory)
	if err != nil {
		return nil, nil, err
	}
	conn, err := connectUnix(ctx, path, src, connect)
	if err != nil {
		return nil, nil, errors.Join(err, src.Close())
	}
	return conn, src, nil
}

// connectUnix connects to a NIC on the same host and passes it a memfd. It sends one message: a
// 16-byte header {magic, u32 regions, u32 0}, and for each region {u64 device address, u64 size,
// u64 offset in its fd} and one fd. The answer is {u32 status, u32 length} and a reason.
func connectUnix(ctx context.Context, path string, src *arena.Memfd, connect connector) (_ net.Conn, err error) {
	if connect == nil {
		connect = func(ctx context.Context) (*net.UnixConn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, fmt.Errorf("%w; is the NIC running with a unix attachment on that path?", err)
			}
			return c.(*net.UnixConn), nil
		}
	}
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		err = errors.Join(fmt.Errorf("%s: memory hand-over: %w", path, err), conn.Close())
	}()

	regions := src.Regions()
	msg := make([]byte, 0, 16+24*len(regions))
	msg = append(msg, preambleMagic...)
	msg = binary.LittleEndian.AppendUint32(msg, uint32(len(regions)))
	msg = binary.LittleEndian.AppendUint32(msg, 0)
	var fds []int
	for _, r := range regions {
		for _, v := range []uint64{r.Addr, r.Size, r.Offset} {
			msg = binary.LittleEndian.AppendUint64(msg, v)
		}
		fds = append(fds, int(src.File().Fd()))
	}
	if err := conn.SetDeadline(time.Now().Add(preambleTimeout)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends the wait at once
	defer stop()
	if n, _, err := conn.WriteMsgUnix(msg, unix.UnixRights(fds...), nil); err != nil {
		return nil, err
	} else if n != len(msg) {
		return nil, io.ErrShortWrite
	}
	var answer [8]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, fmt.Errorf("%w: either the NIC ended just now, or this socket is not for a client with memory (attach: {type: unix})", err)
	}
	if string(answer[:5]) == "HTTP/" {
		return nil, errors.New("this is the control socket of a NIC; guests have sockets of their own (attach: {type: unix})")
	}
	status := abi.Status(binary.LittleEndian.Uint32(answer[:]))
	reason := make([]byte, min(binary.LittleEndian.Uint32(answer[4:]), 1024))
	if _, err := io.ReadFull(conn, reason); err != nil {
		return nil, err
	}
	if status != abi.StatusOK {
		return nil, &StatusError{Op: "memory regions", Status: status, Reason: string(reason)}
	}
	if !stop() { // a deadline in the past may still be set
		return nil, errors.New("the NIC answered too late")
	}
	return conn, conn.SetDeadline(time.Time{})
}

// pciMemory is the memory that a PCI device of the NIC can access, with the device. The device is
// released when it can access no memory any more.
type pciMemory struct {
	arena.Source
	pci *window.PCI
}

// PCIOf returns the PCI device of memory from Dial, or nil if there is none. It is valid as long as
// the memory.
func PCIOf(src arena.Source) *window.PCI {
	if m, ok := src.(*pciMemory); ok {
		return m.pci
	}
	return nil
}

func (m *pciMemory) Close() error {
	err := m.Source.Close()
	m.pci.Close()
	return err
}

// dialPCI opens a PCI device and a session by it. If the guest has an IOMMU it maps the memory
// there, otherwise it pins the memory and uses physical addresses.
func dialPCI(ctx context.Context, t target, memory int) (net.Conn, arena.Source, error) {
	pci, err := window.OpenPCI(t.address, uint32(t.function))
	if errors.Is(err, window.ErrNone) {
		err = fmt.Errorf("%w; has QEMU a vfio-user-pci device for it, and is it free?", err)
	}
	if err != nil {
		return nil, nil, err
	}
	m := &pciMemory{pci: pci}
	if pci.Translated() {
		m.Source = arena.NewIOMMU(pci, memory)
	} else {
		m.Source = arena.NewGuestRAM(memory)
	}
	conn, err := pci.Dial(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return conn, m, nil
}

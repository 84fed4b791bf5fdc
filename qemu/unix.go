package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ListenUnix attaches bare clients, without a VM, on a unix socket at path. A
// client starts with the memory preamble (see receivePreamble) and then speaks the
// same stream as a guest over vsock. A client whose preamble is refused gets the
// reason and never becomes a session. One client may map at most a clientShare-th of the budget
// memory. If memory is nil, the budget is guestmem.Attachment.
func ListenUnix(path string, memory *guestmem.Budget) (queues.Attachment, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock, memory), nil
}

// ServeUnix is like ListenUnix on a Socket that another process keeps. f is a copy of that socket's
// descriptor; ServeUnix closes it.
func ServeUnix(f *os.File, path string, memory *guestmem.Budget) (queues.Attachment, error) {
	defer f.Close()
	sock, err := keptSocket(f, path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock, memory), nil
}

func serveUnix(sock *unixSocket, memory *guestmem.Budget) *unixAttachment {
	if memory == nil {
		memory = guestmem.NewBudget(sock.path, guestmem.Attachment)
	}
	a := newUnixAttachment("unix", sock.path, memory)
	a.sock = sock
	a.wg.Add(1)
	go a.acceptLoop()
	return a
}

func newUnixAttachment(transport, name string, memory *guestmem.Budget) *unixAttachment {
	return &unixAttachment{
		transport: transport,
		name:      name,
		mem:       memory,
		ready:     make(chan *mappedSession),
		done:      make(chan struct{}),
		log:       loglimit.Log{To: slog.Default()},
	}
}

// InProcess attaches drivers that run in this process. They speak as bare clients do, over connections
// that Dial makes.
type InProcess struct{ *unixAttachment }

// NewInProcess returns an attachment without a socket.
func NewInProcess(memory *guestmem.Budget) InProcess {
	return InProcess{newUnixAttachment(queues.InProcess, queues.InProcess, memory)}
}

// Dial connects a driver. The driver sends the memory preamble.
func (p InProcess) Dial(context.Context) (*net.UnixConn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	if !p.begin(theirs) {
		return nil, errors.Join(net.ErrClosed, ours.Close(), theirs.Close())
	}
	return ours, nil
}

// socketPair returns two connected unix sockets.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "driver in this process")
		c, e := net.FileConn(f)
		_ = f.Close() // FileConn has duplicated it
		if err = errors.Join(err, e); e == nil {
			conns[i] = c.(*net.UnixConn)
		}
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

const (
	// maxHandshakes bounds the clients whose preamble is being read or that wait for Accept. When
	// there are that many, a new client displaces the oldest. Clients that connect and send nothing
	// therefore block nobody, since a proper client sends its preamble at once.
	maxHandshakes = 64
	// maxUnfinished bounds the clients of which this process still has something to do, also after they
	// were displaced: closing a descriptor that a client passed may wait for a program of the client's (a
	// file on FUSE), and takes a thread meanwhile. Beyond that new clients are refused.
	maxUnfinished = 8 * maxHandshakes
	// preambleTimeout bounds how long a client may take to send its preamble and read the answer.
	preambleTimeout = 5 * time.Second
	// clientShare is the divisor of the attachment's memory budget: one client may map this part of
	// it.
	clientShare = 16
)

type unixAttachment struct {
	transport string      // of its peers
	name      string      // of the socket
	sock      *unixSocket // nil: in process
	mem       *guestmem.Budget
	ready     chan *mappedSession
	done      chan struct{}
	wg        sync.WaitGroup
	log       loglimit.Log

	mu         sync.Mutex
	busy       []*handshake // oldest first
	unfinished int          // goroutines that handle clients
	closed     bool
}

// handshake is a client that is not yet a session.
type handshake struct {
	conn *net.UnixConn
	gone chan struct{} // closed when a newer client has displaced it
}

var (
	errMadeRoom   = errors.New("it took longer than others that came later")
	errUnfinished = fmt.Errorf("the descriptors of %d earlier clients are not closed yet", maxUnfinished)
)

func (a *unixAttachment) acceptLoop() {
	defer a.wg.Done()
	for {
		conn, err := a.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.log.Warn("cannot accept a client", "socket", a.name, "error", err)
			time.Sleep(acceptPause)
			continue
		}
		if !a.begin(conn) {
			conn.Close()
			return
		}
	}
}

// begin starts a goroutine that reads a client's preamble. It returns false if the attachment is
// closed.
func (a *unixAttachment) begin(conn *net.UnixConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.unfinished == maxUnfinished {
		a.log.Warn("client refused", "socket", a.name, "reason", errUnfinished)
		conn.Close()
		return true
	}
	if len(a.busy) == maxHandshakes {
		close(a.busy[0].gone)
		a.busy[0].conn.Close()
		a.busy = slices.Delete(a.busy, 0, 1)
	}
	h := &handshake{conn, make(chan struct{})}
	a.busy = append(a.busy, h)
	a.unfinished++
	a.wg.Go(func() {
		a.handshake(h)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unfinished--
	})
	return true
}

func (a *unixAttachment) handshake(h *handshake) {
	_ = h.conn.SetDeadline(time.Now().Add(preambleTimeout))
	s, err := newUnixSession(h.conn, a.transport, a.mem.Share("a client of "+a.name, clientShare))
	if err == nil {
		_ = h.conn.SetDeadline(time.Time{})
		select {
		case a.ready <- s:
		case <-h.gone:
			s.Close()
		case <-a.done:
			s.Close()
		}
	}
	a.mu.Lock()
	closed := a.closed // then the handshake failed because of Close, not because of the client
	a.busy = slices.DeleteFunc(a.busy, func(o *handshake) bool { return o == h })
	a.mu.Unlock()
	if err == nil {
		return
	}
	select {
	case <-h.gone:
		err = errMadeRoom
	default:
	}
	if !closed {
		a.log.Warn("client refused", "socket", a.name, "reason", err)
	}
	h.conn.Close()
}

func (a *unixAttachment) Accept() (queues.Session, error) {
	select {
	case s := <-a.ready:
		return s, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

func (a *unixAttachment) Addr() string { return a.transport + ":" + a.name }

func (a *unixAttachment) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	close(a.done)
	for _, h := range a.busy {
		h.conn.Close()
	}
	a.mu.Unlock()
	if a.sock == nil {
		return waitClosed(&a.wg)
	}
	return errors.Join(a.sock.Close(), waitClosed(&a.wg))
}

// newUnixSession reads a client's preamble and returns the client's session.
func newUnixSession(conn *net.UnixConn, transport string, memory *guestmem.Budget) (*mappedSession, error) {
	peer, err := peerCredentials(conn)
	if err != nil {
		return nil, err
	}
	regions, maps, err := receivePreamble(conn, memory)
	if err != nil {
		return nil, err
	}
	peer.Transport = transport
	s := &mappedSession{socket: conn, peer: peer, maps: maps}
	s.ram.set(queues.NewRegions(regions))
	return s, nil
}

func peerCredentials(conn *net.UnixConn) (queues.Identity, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return queues.Identity{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return queues.Identity{}, err
	}
	if cerr != nil {
		return queues.Identity{}, fmt.Errorf("peer credentials: %w", cerr)
	}
	return queues.Identity{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// A bare client sends its memory preamble, little-endian, with one sendmsg:
//
//	 0        8       12       16                            16+24n
//	┌────────┬───────┬────────┬─────────────────────────────┐
//	│VNICMEM1│ u32 n │ u32 0  │ n × {u64 address, size,     │  + n descriptors
//	│        │       │        │      offset in its file}    │
//	└────────┴───────┴────────┴─────────────────────────────┘
//
// The answer is {u32 status, u32 length} and a reason of length bytes; status is an abi.Status.
// Address, size and offset are multiples of 4096.
const (
	preambleMagic  = "VNICMEM1"
	preambleHeader = 16
	preambleRegion = 24
	// maxClientRegions bounds the mappings of one client.
	maxClientRegions = 64
	pageSize         = 4096
)

// receivePreamble reads and answers a client's preamble and maps its memory.
func receivePreamble(conn *net.UnixConn, memory *guestmem.Budget) (regions []queues.Region, maps []*guestmem.Mapping, err error) {
	var fds fdpass.FDs
	defer fds.Close()
	wanted, err := readPreamble(conn, &fds)
	if err != nil && !errors.Is(err, errPreamble) {
		return nil, nil, fmt.Errorf("memory preamble: %w", err)
	}
	if err == nil {
		regions, maps, err = mapClient(wanted, &fds, memory)
	}
	status, reason := abi.StatusOK, ""
	if err != nil {
		status, reason = abi.StatusInvalidArgument, err.Error()
	}
	answer := binary.LittleEndian.AppendUint32(nil, uint32(status))
	answer = binary.LittleEndian.AppendUint32(answer, uint32(len(reason)))
	if _, werr := conn.Write(append(answer, reason...)); err == nil && werr != nil {
		unmapAll(maps)
		return nil, nil, fmt.Errorf("memory preamble: answer: %w", werr)
	}
	return regions, maps, err
}

// errPreamble is wrapped by the refusals that are sent to the client.
var errPreamble = errors.New("memory preamble refused")

func refuse(format string, a ...any) error {
	return fmt.Errorf("%w: %w", errPreamble, fmt.Errorf(format, a...))
}

type clientRegion struct{ addr, size, offset uint64 }

func readPreamble(conn *net.UnixConn, fds *fdpass.FDs) ([]clientRegion, error) {
	var h [preambleHeader]byte
	if err := fds.ReadFull(conn, h[:], maxClientRegions); err != nil {
		return nil, err
	}
	if string(h[:8]) != preambleMagic {
		return nil, refuse("it starts with %q, want %q", h[:8], preambleMagic)
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if n > maxClientRegions {
		return nil, refuse("%d regions, the limit is %d", n, maxClientRegions)
	}
	b := make([]byte, n*preambleRegion)
	if err := fds.ReadFull(conn, b, maxClientRegions); err != nil {
		return nil, err
	}
	if fds.Len() != int(n) {
		return nil, refuse("%d regions with %d descriptors", n, fds.Len())
	}
	rs := make([]clientRegion, n)
	for i := range rs {
		e := b[i*preambleRegion:]
		rs[i] = clientRegion{binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint64(e[16:])}
		if err := rs[i].check(rs[:i]); err != nil {
			return nil, err
		}
	}
	return rs, nil
}

// check refuses a region that no memory can have, or that overlaps one of those before it.
func (r clientRegion) check(before []clientRegion) error {
	_, wraps := bits.Add64(r.addr, r.size, 0)
	end, offsetWraps := bits.Add64(r.offset, r.size, 0)
	switch {
	case r.size == 0:
		return refuse("region at %#x has no bytes", r.addr)
	case (r.addr|r.size|r.offset)%pageSize != 0:
		return refuse("region %#x+%#x at offset %#x is not made of whole %d-byte pages", r.addr, r.size, r.offset, pageSize)
	case wraps != 0 || offsetWraps != 0 || end >= 1<<63:
		return refuse("region %#x+%#x at offset %#x wraps around", r.addr, r.size, r.offset)
	}
	for _, o := range before {
		if r.addr < o.addr+o.size && o.addr < r.addr+r.size {
			return refuse("regions %#x+%#x and %#x+%#x overlap", o.addr, o.size, r.addr, r.size)
		}
	}
	return nil
}

// mapClient maps all regions, or none if it fails.
func mapClient(rs []clientRegion, fds *fdpass.FDs, memory *guestmem.Budget) (regions []queues.Region, maps []*guestmem.Mapping, err error) {
	defer func() {
		if err != nil {
			unmapAll(maps)
			regions, maps = nil, nil
		}
	}()
	for _, r := range rs {
		fd := fds.Take()
		m, err := r.mmap(fd, memory)
		if err != nil {
			fds.Add(fd) // closing it may block on the client, which must get the answer first
			return regions, maps, err
		}
		_ = unix.Close(fd)
		maps = append(maps, m)
		regions = append(regions, queues.Region{Addr: r.addr, Mem: m.Mem})
	}
	return regions, maps, nil
}

// mmap maps one region. It requires F_SEAL_SHRINK: without the seal the client could truncate the
// file while it is mapped, and each access would fault.
func (r clientRegion) mmap(fd int, memory *guestmem.Budget) (*guestmem.Mapping, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, refuse("the descriptor of region %#x is not a memfd (%w); create it with memfd_create and MFD_ALLOW_SEALING", r.addr, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, refuse("the memfd of region %#x lacks F_SEAL_SHRINK; add the seal before passing it", r.addr)
	}
	m, err := memory.Map(fd, r.offset, r.size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, refuse("region %#x+%#x: %w", r.addr, r.size, err)
	}
	return m, nil
}

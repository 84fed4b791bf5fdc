package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/queues"
)

// GuestRAM describes where the memory of a guest on the kernel's vsock is on the host. QEMU must
// have been started with a named shared file (-object memory-backend-file,mem-path=FILE,share=on).
type GuestRAM struct {
	CID    uint32
	File   string
	Ranges []RAMRange
}

// RAMRange maps guest-physical addresses to a part of the file, in bytes. On q35
// with more than 2 GiB the memory above 4 GiB continues at file offset 2 GiB.
type RAMRange struct{ Addr, Size, Offset uint64 }

// ListenVsock attaches guests of QEMU's vhost-vsock-pci device through the
// kernel's AF_VSOCK, on all context IDs of this machine. A guest without an
// entry in guests has a session without memory. One guest may map at most a guestShare-th of the
// budget memory, however many sessions it begins. If memory is nil, the budget is
// guestmem.Attachment.
func ListenVsock(port uint32, guests []GuestRAM, memory *guestmem.Budget) (queues.Attachment, error) {
	if memory == nil {
		memory = guestmem.NewBudget(fmt.Sprintf("vsock port %d", port), guestmem.Attachment)
	}
	rams := make(map[uint32]kernelGuest, len(guests))
	for _, g := range guests {
		if _, twice := rams[g.CID]; twice {
			return nil, fmt.Errorf("vsock port %d: two memory files for guest %d", port, g.CID)
		}
		for i, r := range g.Ranges {
			c := clientRegion{r.Addr, r.Size, r.Offset}
			before := make([]clientRegion, 0, i)
			for _, o := range g.Ranges[:i] {
				before = append(before, clientRegion{o.Addr, o.Size, o.Offset})
			}
			if err := c.check(before); err != nil {
				return nil, fmt.Errorf("memory of guest %d in %s: %w", g.CID, g.File, err)
			}
		}
		rams[g.CID] = kernelGuest{g, memory.Share(fmt.Sprintf("guest %d", g.CID), guestShare)}
	}
	// VMADDR_CID_ANY: if this machine is a guest itself, its own guests cannot reach a listener on
	// its own CID.
	l, err := vsock.ListenContextID(math.MaxUint32, port, nil)
	if err != nil {
		return nil, fmt.Errorf("vsock port %d: %w; is the vhost_vsock module loaded (modprobe vhost_vsock)?", port, err)
	}
	return &kernelAttachment{l: l, port: port, rams: rams, log: loglimit.Log{To: slog.Default()}}, nil
}

// guestShare is the divisor of the attachment's memory budget: one guest may map this part of it.
const guestShare = 4

// kernelGuest is a guest whose memory is configured.
type kernelGuest struct {
	GuestRAM
	mem *guestmem.Budget
}

type kernelAttachment struct {
	l    net.Listener // of vsock
	port uint32
	rams map[uint32]kernelGuest
	log  loglimit.Log
}

func (a *kernelAttachment) Accept() (queues.Session, error) {
	for {
		c, err := a.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, net.ErrClosed
		}
		if err != nil {
			return nil, fmt.Errorf("vsock port %d: %w", a.port, err)
		}
		s, err := a.session(c)
		if err == nil {
			return s, nil
		}
		// A bad memory file of one guest must not end the service of the others.
		a.log.Warn("guest refused", "port", a.port, "reason", err)
		c.Close()
	}
}

func (a *kernelAttachment) session(c net.Conn) (*mappedSession, error) {
	addr, ok := c.RemoteAddr().(*vsock.Addr)
	if !ok {
		return nil, fmt.Errorf("peer has address %v, want a vsock address", c.RemoteAddr())
	}
	stream, ok := c.(socket)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", c)
	}
	s := &mappedSession{socket: stream, peer: queues.Identity{Transport: "vsock", CID: addr.ContextID}}
	if g, ok := a.rams[addr.ContextID]; ok {
		var err error
		if s.maps, err = g.mapInto(&s.ram); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (a *kernelAttachment) Addr() string { return fmt.Sprintf("vsock:%d", a.port) }

func (a *kernelAttachment) Close() error { return a.l.Close() }

// mapInto maps the guest's memory file and announces the memory to the watchers of to. The file has
// no seals, so somebody may truncate it: an access behind its end is then a fault, which
// queues.Memory reports as an error.
func (g kernelGuest) mapInto(to *ram) (maps []*guestmem.Mapping, err error) {
	defer func() {
		if err != nil {
			unmapAll(maps)
			maps, err = nil, fmt.Errorf("memory of guest %d in %s: %w", g.CID, g.File, err)
		}
	}()
	f, err := os.OpenFile(g.File, os.O_RDWR|syscall.O_NONBLOCK, 0) // opening a pipe or device must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := guestmem.Check(int(f.Fd())); err != nil {
		return nil, err
	}
	var regions []queues.Region
	for _, r := range g.Ranges {
		m, err := g.mem.Map(int(f.Fd()), r.Offset, r.Size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return maps, fmt.Errorf("range %#x+%#x: %w", r.Addr, r.Size, err)
		}
		maps = append(maps, m)
		regions = append(regions, queues.Region{Addr: r.Addr, Mem: m.Mem})
	}
	to.set(queues.NewRegions(regions))
	return maps, nil
}

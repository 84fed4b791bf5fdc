package tap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Offload is the work that a frame's sender left for others, as in the virtio-net header. Offsets
// count from the Ethernet header.
type Offload struct {
	GSO        uint8  // kind of a frame that stands for several packets, 0 for none (VIRTIO_NET_HDR_GSO_…)
	NeedsCsum  bool   // the checksum at CsumStart+CsumOffset holds the pseudo header's sum only
	Size       uint16 // of each segment's payload, with GSO
	CsumStart  uint16
	CsumOffset uint16
}

// FunctionConfig describes the TAP of a function's port.
type FunctionConfig struct {
	Name   string
	MAC    [6]byte // of the kernel device
	MTU    int
	Bridge string // bridge to join; "" for none
	Segs   int    // maximum number of segments in a frame that the kernel's own TCP sends to the device; 0: its default
	Netns  string // network namespace of the device, a name of "ip netns" or a path; "": the process's

	Persist bool // the device stays when it is closed, and an existing one is opened again

	Keeper Keeper // nil: none
}

// Function is a function's Ethernet port: a TAP that passes frames whole, together with their
// offload (TCP and UDP segmentation, checksums). One goroutine owns it.
type Function struct {
	name   string
	fd     int
	mtu    int
	uso    bool
	closed bool
	keeper Keeper
	v      vector
	stats  Stats
}

// functionOffloads lists the sets of offloads to accept from a function's guest, best first.
var functionOffloads = []struct {
	bits int
	uso  bool
}{
	{tcpOffloads | unix.TUN_F_USO4 | unix.TUN_F_USO6, true},
	{tcpOffloads, false},
	{0, false},
}

const tcpOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN

// functionQueue is the length of the kernel's queue of frames for us. A frame may stand for 64 KiB,
// so a longer queue would only add delay.
const functionQueue = 256

// OpenFunction creates the TAP of a function's port in its namespace, with its MAC and MTU, joins
// it to the bridge and brings it up. The device disappears when it is closed or the process ends,
// unless it is to persist: then the next call finds it unchanged.
func OpenFunction(cfg FunctionConfig) (f *Function, err error) {
	if cfg.Netns == "" {
		f, err = openFunction(cfg)
	} else {
		err = inNetns(cfg.Netns, func() (err error) {
			f, err = openFunction(cfg)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("tap %q: %w", cfg.Name, err)
	}
	return f, nil
}

// attachFunction opens a device that the Keeper does not have.
func attachFunction(cfg FunctionConfig) (fd int, err error) {
	existing, err := findLink(cfg.Name)
	if err != nil {
		return -1, err
	}
	adopt := cfg.Persist && existing != nil
	if err := checkExisting(Config{Name: cfg.Name, Adopt: adopt}); err != nil {
		return -1, err
	}
	if fd, err = attach(cfg.Name, nativeKind, adopt); err != nil {
		return -1, explain(err)
	}
	return fd, nil
}

func openFunction(cfg FunctionConfig) (_ *Function, err error) {
	if err := checkName(cfg.Name); err != nil {
		return nil, err
	}
	fd, kept := -1, takeKept(cfg.Keeper, cfg.Name, nativeKind, 1)
	if kept != nil {
		fd = kept[0]
	} else if fd, err = attachFunction(cfg); err != nil {
		return nil, err
	}
	f := &Function{name: cfg.Name, fd: fd, mtu: cfg.MTU, keeper: cfg.Keeper, v: newVector(functionParts)}
	defer func() {
		switch {
		case err == nil:
		case kept != nil: // the device stays as long as the Keeper has it, and is in the way of another one
			cfg.Keeper.PutBack(cfg.Name, fd)
		default:
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeaderLen); err != nil {
		return nil, os.NewSyscallError("TUNSETVNETHDRSZ", err)
	}
	for _, o := range functionOffloads {
		err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, o.bits)
		if err == nil {
			f.uso = o.uso
			break
		}
		if !errors.Is(err, unix.EINVAL) || o.bits == 0 {
			return nil, os.NewSyscallError("TUNSETOFFLOAD", err)
		}
	}
	if err := setUpFunction(cfg); err != nil {
		return nil, err
	}
	if cfg.Persist {
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
			return nil, os.NewSyscallError("TUNSETPERSIST", err)
		}
	}
	if err := keep(cfg.Keeper, cfg.Name, fd); err != nil {
		return nil, err
	}
	return f, nil
}

// openNetns opens a network namespace, given by its name or path.
func openNetns(name string) (netns.NsHandle, error) {
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join("/run/netns", name)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return ns, fmt.Errorf("network namespace %q: %w (name one that 'ip netns' lists, or a path)", name, err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(ns), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		return ns, errors.Join(fmt.Errorf("network namespace %q: %s is none (name one that 'ip netns' lists, or a path)", name, path), err, ns.Close())
	}
	return ns, nil
}

// CheckNetns returns an error unless a network namespace of that name or path exists.
func CheckNetns(name string) error {
	ns, err := openNetns(name)
	if err != nil {
		return err
	}
	return ns.Close()
}

// inNetns calls f on a thread of its own in a network namespace. What f opens stays usable.
func inNetns(name string, f func() error) error {
	ns, err := openNetns(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := netns.Set(ns)
		if err != nil {
			err = fmt.Errorf("network namespace %q: %w", name, err)
		} else {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func setUpFunction(cfg FunctionConfig) error {
	link, err := findLink(cfg.Name)
	switch {
	case err != nil:
		return err
	case link == nil:
		return errors.New("the interface vanished while it was set up")
	}
	if err := netlink.LinkSetHardwareAddr(link, cfg.MAC[:]); err != nil {
		return fmt.Errorf("set MAC %s: %w", net.HardwareAddr(cfg.MAC[:]), err)
	}
	if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
		return fmt.Errorf("set MTU %d: %w", cfg.MTU, err)
	}
	if err := netlink.LinkSetTxQLen(link, functionQueue); err != nil {
		return fmt.Errorf("set queue length: %w", err)
	}
	if cfg.Segs > 0 {
		if err := netlink.LinkSetGSOMaxSegs(link, cfg.Segs); err != nil {
			return fmt.Errorf("set GSO segments to %d: %w", cfg.Segs, err)
		}
	}
	if cfg.Bridge != "" {
		if err := quiet(link); err != nil {
			return err
		}
		if err := enslave(link, cfg.Bridge, cfg.MTU); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	return nil
}

// functionParts bounds the number of parts of a written frame.
const functionParts = 129

// FunctionBuffer is the size of Read's buffers, bytes.
const FunctionBuffer = ethernetLen + maxPacket

// Name returns the interface name, for people.
func (f *Function) Name() string { return f.name }

// FD returns a descriptor that is readable while frames wait. The port keeps ownership of it.
func (f *Function) FD() int { return f.fd }

// MTU returns the length of the longest IP packet, bytes.
func (f *Function) MTU() int { return f.mtu }

// USO reports whether the kernel accepts and sends frames that stand for several UDP datagrams.
func (f *Function) USO() bool { return f.uso }

// Stats returns the port's counters.
func (f *Function) Stats() Stats { return f.stats }

// Read reads one waiting frame; n is 0 without an error when none waits. b must hold FunctionBuffer
// bytes.
func (f *Function) Read(b []byte) (n int, o Offload, err error) {
	for {
		size, errno := f.v.readv(f.fd, vnetHeaderLen, b)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return 0, o, nil
		case errno != 0:
			return 0, o, fmt.Errorf("tap %q: read: %w", f.name, errno)
		}
		n = size - vnetHeaderLen
		if n < MinFrame {
			f.stats.RxDropped++
			continue
		}
		h := parseVnetHeader(f.v.header[:])
		f.stats.RxFrames++
		f.stats.RxBytes += uint64(n)
		if h.gsoType != gsoNone {
			f.stats.RxSuperframes++
		}
		return n, Offload{
			GSO: h.gsoType, NeedsCsum: h.flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0, Size: h.gsoSize, CsumStart: h.csumStart, CsumOffset: h.csumOffset,
		}, nil
	}
}

// Write sends the frame that consists of parts, at most functionParts of them. It returns false if
// the port cannot take it now; the frame is then lost and counted.
func (f *Function) Write(parts [][]byte, o Offload) bool {
	h := vnetHeader{gsoType: o.GSO, gsoSize: o.Size, csumStart: o.CsumStart, csumOffset: o.CsumOffset}
	if o.NeedsCsum {
		h.flags = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	} else {
		h.csumStart, h.csumOffset = 0, 0
	}
	if o.GSO != gsoNone {
		h.headerLen = uint16(min(len(parts[0]), int(o.CsumStart)+60))
	}
	h.put(f.v.header[:])
	n, errno := 0, unix.EINTR
	for errno == unix.EINTR {
		n, errno = f.v.writeParts(f.fd, parts)
	}
	if errno != 0 {
		f.stats.TxDropped++
		return false
	}
	f.stats.TxFrames++
	f.stats.TxBytes += uint64(n - vnetHeaderLen)
	if o.GSO != gsoNone {
		f.stats.TxSuperframes++
	}
	return true
}

// SetLink sets the carrier state that the guest's side sees.
func (f *Function) SetLink(up bool) error {
	v := 0
	if up {
		v = 1
	}
	if err := unix.IoctlSetPointerInt(f.fd, unix.TUNSETCARRIER, v); err != nil {
		return fmt.Errorf("tap %q: %w", f.name, os.NewSyscallError("TUNSETCARRIER", err))
	}
	return nil
}

// Remove closes the port and makes the Keeper forget the device.
func (f *Function) Remove() error {
	err := f.Close()
	if f.keeper != nil {
		err = errors.Join(err, f.keeper.Forget(f.name))
	}
	return err
}

// Close releases the port. The device disappears unless it is kept or persists.
func (f *Function) Close() error {
	if f.closed {
		return fmt.Errorf("tap %q: close: %w", f.name, net.ErrClosed)
	}
	f.closed = true
	return unix.Close(f.fd)
}

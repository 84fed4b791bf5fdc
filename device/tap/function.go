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

// Offload is what a frame's sender left for others to do, from and for the virtio-net header in
// front of it. Offsets count from the Ethernet header.
type Offload struct {
	GSO        uint8  // kind of a frame that stands for several, 0 for none (VIRTIO_NET_HDR_GSO_…)
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
	Bridge string // to join; "" for none
	Segs   int    // segments of a frame that the kernel's own TCP makes for the device; 0: its default
	Netns  string // network namespace to make the device in, a name of "ip netns" or a path; "": the process's

	Persist bool // the device stays when it is closed, and one that stayed is taken again

	Keeper Keeper // nil: none
}

// Function is a function's Ethernet port: a TAP whose frames cross whole, with what their senders
// left to do (TCP and UDP segmentation, checksums). One goroutine owns it.
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

// functionOffloads is the ladder of what we take from a function's guest, best first.
var functionOffloads = []struct {
	bits int
	uso  bool
}{
	{tcpOffloads | unix.TUN_F_USO4 | unix.TUN_F_USO6, true},
	{tcpOffloads, false},
	{0, false},
}

const tcpOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN

// functionQueue is how many frames wait in the kernel for us. A frame may stand for 64 KiB: more
// would only be delay.
const functionQueue = 256

// OpenFunction makes the TAP of a function's port in its namespace, with its MAC and MTU, joins it
// to the bridge and brings it up. It vanishes when it is closed or the process dies, unless it is
// to persist: then the next one to open it finds it as it was.
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

// attachFunction opens a device that nobody kept.
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
	fd := -1
	if kept := takeKept(cfg.Keeper, cfg.Name, nativeKind, 1); kept != nil {
		fd = kept[0]
	} else if fd, err = attachFunction(cfg); err != nil {
		return nil, err
	}
	f := &Function{name: cfg.Name, fd: fd, mtu: cfg.MTU, keeper: cfg.Keeper, v: newVector(functionParts)}
	defer func() {
		if err != nil {
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

// inNetns calls f on a thread of its own in a network namespace, given by its name or path. What f
// opens stays usable.
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

// CheckNetns tells whether there is a network namespace of that name or path.
func CheckNetns(name string) error {
	ns, err := openNetns(name)
	if err != nil {
		return err
	}
	return ns.Close()
}

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

// functionParts bounds the parts of a frame written.
const functionParts = 129

// FunctionBuffer is the size of the buffers that Read needs, bytes.
const FunctionBuffer = ethernetLen + maxPacket

// Name is the interface name, for people.
func (f *Function) Name() string { return f.name }

// FD is readable while frames wait. The port keeps ownership of it.
func (f *Function) FD() int { return f.fd }

// MTU is the largest packet, bytes.
func (f *Function) MTU() int { return f.mtu }

// USO tells whether the kernel takes and gives UDP datagrams that stand for several.
func (f *Function) USO() bool { return f.uso }

// Stats returns the port's counters.
func (f *Function) Stats() Stats { return f.stats }

// Read takes one waiting frame, 0 bytes and no error when none waits. b must hold FunctionBuffer
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

// Write sends the frame that parts make one after the other, at most functionParts of them. It
// reports false when the port does not take it now; the frame is lost and counted.
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

// SetLink tells the guest's side whether there is a carrier.
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

// Remove is Close, where the device is not to be kept for later.
func (f *Function) Remove() error {
	err := f.Close()
	if f.keeper != nil {
		err = errors.Join(err, f.keeper.Forget(f.name))
	}
	return err
}

// Close releases the port, and the device disappears unless somebody keeps it.
func (f *Function) Close() error {
	if f.closed {
		return fmt.Errorf("tap %q: close: %w", f.name, net.ErrClosed)
	}
	f.closed = true
	return unix.Close(f.fd)
}

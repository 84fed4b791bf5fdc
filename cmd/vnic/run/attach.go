package run

import (
	"fmt"
	"log/slog"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/service"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/pci"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// sockets opens attachments for guests: on sockets of this process (ownSockets), or on those of its
// supervisor (givenSockets).
type sockets interface {
	unix(path string, memory *guestmem.Budget) (queues.Attachment, error)
	// vhostUser returns the device of a guest, not served yet, with the windows that exist already.
	vhostUser(path string, cid uint32, memory *guestmem.Budget) (*qemu.VhostUser, error)
	// window gives a guest's function its window, unless it has it.
	window(dev *qemu.VhostUser, w window) error
	// vfioUser returns a guest, with the functions that exist already.
	vfioUser(c *config.Attach, memory *guestmem.Budget) (*qemu.VfioUser, error)
	// function gives a guest a function, unless it has it.
	function(guest *qemu.VfioUser, w window, look qemu.VfioPCI) error
}

// window describes the window of a guest's function, or a function that the guest gets by
// vfio-user.
type window struct {
	cid      uint32
	function uint32
	kind     abi.FunctionType
	socket   string
}

func windowOf(id pfvf.ID, c *config.Attach) window {
	w := window{c.CID, uint32(id), abi.FunctionPF, c.WindowSocket(config.NamedFunction{PF: id.PF(), VF: id.VF()})}
	if id.IsVF() {
		w.kind = abi.FunctionVF
	}
	return w
}

// windowsOf returns the windows, or vfio-user functions, that a configuration defines for an
// attachment.
func windowsOf(cfg *config.Config, c *config.Attach) (ws []window, err error) {
	if c.Type != config.AttachVfioUser && (c.Type != config.AttachVhostUser || !c.Windows) {
		return nil, nil
	}
	for _, f := range cfg.FunctionsOf(c.CID) {
		id, err := pfvf.NewID(uint32(cfg.NIC.Host), uint32(f.PF), uint32(f.VF))
		if err != nil {
			return nil, err
		}
		ws = append(ws, windowOf(id, c))
	}
	return ws, nil
}

// memoryBudgets holds the budgets of mapped guest memory of attachments and ports.
type memoryBudgets struct {
	nic  *guestmem.Budget
	each guestmem.Limit
}

func newMemoryBudgets(cfg *config.Config) *memoryBudgets {
	return &memoryBudgets{guestmem.NewBudget("the NIC", guestmem.NIC), guestmem.Limit{Bytes: uint64(cfg.NIC.GuestMemory), Maps: guestmem.Attachment.Maps}}
}

func (m *memoryBudgets) of(name string) *guestmem.Budget { return m.nic.Part(name, m.each) }

// count returns the values for the NIC's counters.
func (m *memoryBudgets) count() (bytes, maps, refused uint64) {
	u := m.nic.Usage()
	return u.Bytes, uint64(u.Maps), u.Refused
}

// attach opens all attachments of the configuration. If it fails it closes those that it has
// opened.
func attach(cfg *config.Config, from sockets, memory *memoryBudgets, log *slog.Logger) (as []device.Attachment, err error) {
	defer func() {
		if err != nil {
			for _, a := range as {
				_ = a.Close()
			}
			as = nil
		}
	}()
	for i := range cfg.Attach {
		c := &cfg.Attach[i]
		a := device.Attachment{Name: c.Name}
		switch c.Type {
		case config.AttachVhostUser:
			a.Attachment, err = attachVhostUser(cfg, c, from, memory.of(c.Socket))
		case config.AttachVfioUser:
			a.Attachment, err = attachVfioUser(cfg, c, from, memory.of(c.Socket))
		case config.AttachUnix:
			a.Attachment, err = from.unix(c.Socket, memory.of(c.Socket))
		case config.AttachVsock: // the kernel itself resets its guests' flows
			a.Attachment, err = qemu.ListenVsock(c.Port, guestRAM(c.RAM), memory.of(fmt.Sprintf("vsock port %d", c.Port)))
		}
		if err != nil {
			return as, fmt.Errorf("attach[%d]: %w", i, err)
		}
		as = append(as, a)
	}
	if list := service.Of(cfg); len(list) > 0 {
		as = append(as, device.Attachment{Attachment: service.Start(list, memory.of("services"), log)})
	}
	return as, nil
}

// OpenGuests opens the attachments and ports of a NIC on sockets of this process. A log must be set.
func OpenGuests(cfg *config.Config, deps *device.Deps) (err error) {
	memory := newMemoryBudgets(cfg)
	if deps.Attachments, err = attach(cfg, ownSockets{deps.Log}, memory, deps.Log); err != nil {
		return err
	}
	deps.Guests, deps.GuestMemory = guestPorts{ownAcceptor, memory, deps.Log}, memory.count
	return nil
}

// vhostUser is an attachment that owns its device: closing it closes the device too.
type vhostUser struct {
	device.Attachment
	dev  *qemu.VhostUser
	cfg  *config.Attach
	from sockets
}

var _ device.Windower = (*vhostUser)(nil)

// GiveWindow implements device.Windower. A window stays until the NIC ends, because the guest's
// QEMU cannot replace it by another.
func (v *vhostUser) GiveWindow(id pfvf.ID, cid uint32) error {
	if !v.cfg.Windows || cid != v.cfg.CID {
		return nil
	}
	return v.from.window(v.dev, windowOf(id, v.cfg))
}

func (v *vhostUser) Close() error {
	err := v.Attachment.Close()
	if e := v.dev.Close(); err == nil {
		err = e
	}
	return err
}

func attachVhostUser(cfg *config.Config, c *config.Attach, from sockets, memory *guestmem.Budget) (*vhostUser, error) {
	windows, err := windowsOf(cfg, c)
	if err != nil {
		return nil, err
	}
	dev, err := from.vhostUser(c.Socket, c.CID, memory)
	if err != nil {
		return nil, err
	}
	for _, w := range windows {
		if err := from.window(dev, w); err != nil {
			_ = dev.Close()
			return nil, err
		}
	}
	if c.Vsock != "" {
		if err := dev.Forward(c.Vsock); err != nil {
			_ = dev.Close()
			return nil, err
		}
	}
	l, err := dev.Listen(abi.Port)
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	dev.Serve()
	return &vhostUser{device.Attachment{Attachment: l}, dev, c, from}, nil
}

// ownSockets opens sockets of this process.
type ownSockets struct{ log *slog.Logger }

func (s ownSockets) unix(path string, memory *guestmem.Budget) (queues.Attachment, error) {
	return qemu.ListenUnix(path, memory)
}

func (s ownSockets) vhostUser(path string, cid uint32, memory *guestmem.Budget) (*qemu.VhostUser, error) {
	return qemu.ListenVhostUser(path, cid, qemu.VhostOptions{Log: s.log, Memory: memory})
}

func (s ownSockets) window(dev *qemu.VhostUser, w window) error {
	if dev.HasWindow(w.function) {
		return nil
	}
	return dev.AddWindow(w.function, w.kind, w.socket)
}

func (s ownSockets) vfioUser(c *config.Attach, memory *guestmem.Budget) (*qemu.VfioUser, error) {
	return qemu.NewVfioUser(c.Socket, c.CID, qemu.VhostOptions{Log: s.log, Memory: memory}), nil
}

func (s ownSockets) function(guest *qemu.VfioUser, w window, look qemu.VfioPCI) error {
	if guest.HasFunction(w.function) {
		return nil
	}
	return guest.AddFunction(w.function, w.kind, w.socket, look)
}

func guestRAM(rams []config.RAM) []qemu.GuestRAM {
	var gs []qemu.GuestRAM
	for _, r := range rams {
		g := qemu.GuestRAM{CID: r.CID, File: r.File}
		for _, l := range r.Layout {
			g.Ranges = append(g.Ranges, qemu.RAMRange{Addr: uint64(l.Address), Size: uint64(l.Size), Offset: uint64(l.Offset)})
		}
		gs = append(gs, g)
	}
	return gs
}

// vfioUser is a vfio-user attachment that can get functions while the NIC runs.
type vfioUser struct {
	*qemu.VfioUser
	cfg  *config.Attach
	from sockets
}

var _ device.Windower = (*vfioUser)(nil)

// GiveWindow implements device.Windower. It creates a socket by which the function can be plugged
// into QEMU. The socket stays until the NIC ends.
func (v *vfioUser) GiveWindow(id pfvf.ID, cid uint32) error {
	if cid != v.cfg.CID {
		return nil
	}
	return v.from.function(v.VfioUser, windowOf(id, v.cfg), lookOf(v.cfg))
}

// lookOf returns how the functions of an attachment appear as PCI devices.
func lookOf(c *config.Attach) qemu.VfioPCI {
	return qemu.VfioPCI{
		IDs: pci.IDs{
			Vendor: uint16(*c.PCI.Vendor), Device: uint16(*c.PCI.Device),
			SubVendor: uint16(*c.PCI.SubsystemVendor), SubDevice: uint16(*c.PCI.SubsystemDevice),
		},
		MSI: c.PCI.Interrupts == config.PCIMSI,
	}
}

func attachVfioUser(cfg *config.Config, c *config.Attach, from sockets, memory *guestmem.Budget) (*vfioUser, error) {
	functions, err := windowsOf(cfg, c)
	if err != nil {
		return nil, err
	}
	guest, err := from.vfioUser(c, memory)
	if err != nil {
		return nil, err
	}
	for _, w := range functions {
		if err := from.function(guest, w, lookOf(c)); err != nil {
			_ = guest.Close()
			return nil, err
		}
	}
	return &vfioUser{guest, c, from}, nil
}

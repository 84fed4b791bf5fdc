package main

import (
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/pci"
)

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
	if cid != v.cfg.CID || v.HasFunction(uint32(id)) {
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
		if guest.HasFunction(w.function) {
			continue
		}
		if err := from.function(guest, w, lookOf(c)); err != nil {
			_ = guest.Close()
			return nil, err
		}
	}
	return &vfioUser{guest, c, from}, nil
}

package qemu

import (
	"context"
	"fmt"
)

// PlugVfio adds a vfio-user function to a running guest.
func PlugVfio(ctx context.Context, q *QMP, f Vfio) error {
	return plug(ctx, q, f.Function, func(bus string) error {
		d := f.device()
		d["bus"] = bus
		if err := q.Execute(ctx, "device_add", d, nil); err != nil {
			return fmt.Errorf("%w: is QEMU 10.1 or newer, and does vnic run serve %s?", err, f.Socket)
		}
		return nil
	})
}

// UnplugVfio removes a function that PlugVfio added from a running guest. It refuses to unplug a
// function with MSI-X, because QEMU would exit.
func UnplugVfio(ctx context.Context, q *QMP, f Vfio) error {
	if !f.MSI {
		return fmt.Errorf("%s: QEMU 11.1 ends when a vfio-user device with MSI-X is unplugged; have the NIC give this guest's functions MSI (attach: pci: interrupts: msi)", f.Function)
	}
	return unplug(ctx, q, f.Function)
}

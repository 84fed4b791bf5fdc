package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

// Windows and ports can be added to a running guest, each on its own root port (Line.HotPlug). The
// rest of a Line is fixed when QEMU starts: memory, the vsock device with the guest's CID, the
// machine.

// PlugWindow adds the window of a function to a running guest.
func PlugWindow(ctx context.Context, q *QMP, w Window) error {
	return plug(ctx, q, w.Function, func(bus string) error {
		backend := map[string]any{"type": "socket", "data": map[string]any{
			"addr":   map[string]any{"type": "unix", "data": map[string]string{"path": w.Socket}},
			"server": false,
		}}
		if err := q.Execute(ctx, "chardev-add", map[string]any{"id": w.chardev(), "backend": backend}, nil); err != nil {
			return fmt.Errorf("%w: does vnic run serve windows of this guest (windows: true)?", err)
		}
		err := q.Execute(ctx, "device_add", map[string]any{"driver": "ivshmem-doorbell", "id": w.Function, "chardev": w.chardev(), "vectors": ivshmem.Vectors, "bus": bus}, nil)
		if err != nil {
			return errors.Join(err, q.Execute(ctx, "chardev-remove", map[string]string{"id": w.chardev()}, nil))
		}
		return nil
	})
}

// PlugPort adds the Ethernet port of a function to a running guest.
func PlugPort(ctx context.Context, q *QMP, p Port) error {
	if p.Socket != "" {
		return plugGuestPort(ctx, q, p)
	}
	// QEMU would create a missing TAP, but that TAP would not be connected to anything.
	if there, err := q.hasInterface(p.TAP); err == nil && !there {
		return fmt.Errorf("port of %s: there is no TAP %s where QEMU runs; make it (%s) or name another with --tap", p.Function, p.TAP, p.MakeTAP())
	}
	return plug(ctx, q, p.id(), func(bus string) error {
		if err := q.Execute(ctx, "netdev_add", map[string]any{"type": "tap", "id": p.id(), "ifname": p.TAP, "script": "no", "downscript": "no"}, nil); err != nil {
			return fmt.Errorf("%w: is there a TAP %s that QEMU may open (ip tuntap add %[2]s mode tap)?", err, p.TAP)
		}
		device := p.properties()
		device["bus"] = bus
		err := q.Execute(ctx, "device_add", device, nil)
		if err != nil {
			return errors.Join(err, q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil))
		}
		return nil
	})
}

// plug finds a free root port and calls add with its id.
func plug(ctx context.Context, q *QMP, id string, add func(bus string) error) error {
	s, err := Inspect(ctx, q)
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(s.Devices, func(d Device) bool { return d.ID == id }):
		return fmt.Errorf("%s: the guest has it already", id)
	case s.HotPlug.Ports == 0:
		return fmt.Errorf("%s: this QEMU was started without root ports to plug into; start it with vnic qemu --hotplug N", id)
	case len(s.HotPlug.Free) == 0:
		return fmt.Errorf("%s: all %d root ports of this QEMU are taken; start it with a larger --hotplug", id, s.HotPlug.Ports)
	}
	if err := add(s.HotPlug.Free[0]); err != nil {
		return fmt.Errorf("%s on %s: %w", id, s.HotPlug.Free[0], err)
	}
	return nil
}

// UnplugWindow removes a window that PlugWindow added from a running guest.
func UnplugWindow(ctx context.Context, q *QMP, w Window) error {
	if err := unplug(ctx, q, w.Function); err != nil {
		return err
	}
	return q.Execute(ctx, "chardev-remove", map[string]string{"id": w.chardev()}, nil)
}

// UnplugPort removes an Ethernet port that PlugPort added from a running guest.
func UnplugPort(ctx context.Context, q *QMP, p Port) error {
	if err := unplug(ctx, q, p.id()); err != nil {
		return err
	}
	if err := q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil); err != nil || p.Socket == "" {
		return err
	}
	return q.Execute(ctx, "chardev-remove", map[string]string{"id": p.id() + "-socket"}, nil)
}

// plugGuestPort adds a vhost-user port to a running guest: one whose rings the NIC serves.
func plugGuestPort(ctx context.Context, q *QMP, p Port) error {
	s, err := Inspect(ctx, q)
	if err != nil {
		return err
	}
	version, accel, socket := parseVersion(s.Version), TCG, p.id()+"-socket"
	if s.KVM {
		accel = KVM
	}
	data := map[string]any{"addr": map[string]any{"type": "unix", "data": map[string]string{"path": p.Socket}}, "server": p.Server}
	switch {
	case p.Server:
		data["wait"] = false
	case version >= reconnectInMs:
		data["reconnect-ms"] = 1000
	default:
		data["reconnect"] = 1
	}
	device := p.properties()
	if p.Queues > 1 {
		device["mq"], device["vectors"] = true, 2*p.Queues+2
	}
	if p.noMSIX(version, accel) {
		device["vectors"] = 0
	}
	return plug(ctx, q, p.id(), func(bus string) error {
		device["bus"] = bus
		if err := q.Execute(ctx, "chardev-add", map[string]any{"id": socket, "backend": map[string]any{"type": "socket", "data": data}}, nil); err != nil {
			return fmt.Errorf("%w: does vnic run serve the port of %s?", err, p.Function)
		}
		err := q.Execute(ctx, "netdev_add", map[string]any{"type": "vhost-user", "id": p.id(), "chardev": socket, "queues": p.Queues}, nil)
		if err == nil {
			if err = q.Execute(ctx, "device_add", device, nil); err == nil {
				return nil
			}
			err = errors.Join(err, q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil))
		}
		return errors.Join(err, q.Execute(ctx, "chardev-remove", map[string]string{"id": socket}, nil))
	})
}

// unplug presses the attention button of the device's root port and waits until the guest has
// released the device. That takes a guest's kernel at least 5 s (PCI Express §6.7.1.5: during that
// time the user may cancel the removal).
func unplug(ctx context.Context, q *QMP, id string) error {
	s, err := Inspect(ctx, q)
	if err != nil {
		return err
	}
	switch at := slices.IndexFunc(s.Devices, func(d Device) bool { return d.ID == id }); {
	case at < 0:
		return fmt.Errorf("%s: the guest does not have it", id)
	case !slices.Contains(s.HotPlug.Taken, s.Devices[at].PCI):
		return fmt.Errorf("%s: the guest has had it from the start, at %s: only what was plugged in can be taken away", id, s.Devices[at].PCI)
	}
	if err := q.Execute(ctx, "device_del", map[string]string{"id": id}, nil); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-q.Events():
			if !ok {
				return fmt.Errorf("%s: QEMU ended: %w", id, q.failure())
			}
			var gone struct {
				Device string `json:"device"`
			}
			if e.Name == "DEVICE_DELETED" && json.Unmarshal(e.Data, &gone) == nil && gone.Device == id {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: the guest does not release it: end the programs that use it there, then it is removed: %w", id, ctx.Err())
		}
	}
}

// hasInterface reports whether QEMU's network namespace has an interface of that name.
func (q *QMP) hasInterface(name string) (bool, error) {
	c, ok := q.conn.(*net.UnixConn)
	if !ok {
		return false, errors.New("a monitor of another machine")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return false, err
	}
	devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", peer.Pid))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(devices)) {
		if device, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(device) == name {
			return true, nil
		}
	}
	return false, nil
}

package demo

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// GuestMemory is each guest's RAM in MiB. A stock kernel, one static binary and the workload's
// buffers fit in it.
const GuestMemory = 384

// vmGuests are QEMU guests: Debian's stock kernel, and an initramfs that holds
// this program and the vsock modules.
type vmGuests struct {
	s              *scene
	kernel, initrd string
	vms            []*qemu.Process
}

// prepareGuests fetches and builds what the guests need. It runs before the process enters other
// network namespaces, because fetching a kernel package needs the host's own network.
func (s *scene) prepareGuests(ctx context.Context) error {
	if s.o.NoVM {
		s.guests = &bareGuests{s: s}
		return nil
	}
	k, err := s.openKernel(ctx)
	if err != nil {
		return err
	}
	initrd := filepath.Join(s.out, "initramfs.cpio")
	i := image.Initramfs{Kernel: k, Init: labkit.Self(), Modules: image.VsockModules}
	if s.o.iommu || s.o.PCI {
		i.Modules = slices.Concat(i.Modules, image.VFIOModules)
	}
	if s.o.PCI {
		if i.Packages, err = fetchLspci(ctx); err != nil {
			return err
		}
	}
	if program, err := exec.LookPath("iperf3"); err == nil {
		i.Modules, i.Programs = append(slices.Clone(i.Modules), "virtio_net"), []string{program}
	} else {
		s.r.step("guests: iperf3 is not installed, so there will be no plain IP (make deps)")
		for _, h := range s.hosts {
			h.Ethernet = false
		}
	}
	if err := s.addVerbs(ctx, &i); err != nil {
		return err
	}
	if err := i.Write(initrd); err != nil {
		return err
	}
	s.r.step("guests: Debian kernel %s, initramfs with this program as /init", k.Release)
	s.guests = &vmGuests{s: s, kernel: k.Boot(), initrd: initrd}
	return nil
}

// fetchLspci returns the packages with lspci, by which the guests show their PCI devices.
func fetchLspci(ctx context.Context) ([]image.Package, error) {
	cache, err := image.DefaultCache()
	if err != nil {
		return nil, err
	}
	return image.FetchPackages(ctx, filepath.Dir(cache), []string{"pciutils"})
}

func (s *scene) openKernel(ctx context.Context) (image.Kernel, error) {
	if s.o.kernel != "" {
		return image.OpenKernel(s.o.kernel)
	}
	cache, err := image.DefaultCache()
	if err != nil {
		return image.Kernel{}, err
	}
	s.r.step("kernel: Debian's linux-image-amd64, unpacked (not installed) in %s", cache)
	return image.FetchKernel(ctx, cache)
}

func (g *vmGuests) start(ctx context.Context) error {
	for _, h := range g.s.hosts {
		console := filepath.Join(g.s.out, fmt.Sprintf("guest%d.log", h.Number))
		m := qemu.Machine{
			Binary:   g.s.o.qemu,
			Name:     fmt.Sprintf("vnic-guest%d", h.Number),
			Memory:   GuestMemory,
			Kernel:   g.kernel,
			Initrd:   g.initrd,
			InitArgs: h.WorkloadArgs(h.Device(), g.s.o.count),
			IOMMU:    g.s.o.iommu || g.s.o.PCI,
			Console:  qemu.FileChardev(console),
		}
		if err := h.Attach(&m); err != nil {
			return err
		}
		if h.Ethernet {
			m.NICs = []qemu.NIC{h.GuestNIC()}
		}
		vm, err := qemu.Start(ctx, m)
		if err != nil {
			return err
		}
		g.vms = append(g.vms, vm)
		g.s.r.step("%s: QEMU booting, pid %d, CID %d, console %s", h.Guest(), vm.PID(), h.GuestCID, console)
	}
	return nil
}

// GuestNIC returns the guest's Ethernet interface: its function's port with rings in guest memory,
// or a TAP that is bridged to the port's TAP.
func (h *Host) GuestNIC() qemu.NIC {
	if h.PortSocket != "" {
		return qemu.NIC{Port: &qemu.Port{Function: "pf0.vf1", Socket: h.PortSocket, Queues: 1, MAC: h.GuestMAC, MTU: h.PortMTU, Speed: int(config.DefaultUplinkSpeed / 1e6)}}
	}
	return qemu.NIC{TAP: h.GuestTAPFile, MAC: h.GuestMAC, MTU: h.PortMTU}
}

// Device returns the URL by which the guest's programs open their function.
func (h *Host) Device() string {
	if h.PCI {
		return "pci://"
	}
	return fmt.Sprintf("vsock://2:%d", abi.Port)
}

// Attach adds the devices to a machine by which the guest reaches its functions.
func (h *Host) Attach(m *qemu.Machine) error {
	if !h.PCI {
		m.Vsock = h.Socket
	}
	if !h.PCI && !h.Windows {
		return nil
	}
	cfg, err := config.Load(h.Config)
	if err != nil {
		return err
	}
	for _, f := range cfg.FunctionsOf(h.GuestCID) {
		name, socket := f.String(), cfg.Attach[0].WindowSocket(f)
		if h.PCI {
			m.Vfio = append(m.Vfio, qemu.Vfio{Function: name, Socket: socket, MSI: cfg.Attach[0].PCI.Interrupts == config.PCIMSI})
		} else {
			m.Windows = append(m.Windows, qemu.Window{Function: name, Socket: socket})
		}
	}
	return nil
}

func (g *vmGuests) work(ctx context.Context) error {
	return g.s.r.followAll(ctx, g.s.hosts, [2]io.Reader{g.vms[0].Output(), g.vms[1].Output()})
}

func (g *vmGuests) stop() error {
	for _, vm := range g.vms {
		vm.Stop()
	}
	return nil
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
	"github.com/falcon-vnic/vnic/device/capture"
)

// name is the lab's, so that it is no other lab's.
const name = "vnic-demo"

// loaded is the Linux driver's module in a guest of a lab. It is loaded at boot.
const loaded = "/lib/modules/vnic.ko"

// labScene is a lab that comes with the program, with changes that the flags make.
type labScene struct {
	o       Options
	r       *report
	lab     *lab.Made
	sniffer *capture.Sniffer
}

func (s *labScene) up(ctx context.Context) (err error) {
	if err := mountOwn(); err != nil {
		return err
	}
	source := "two-guests"
	if s.o.NoVM {
		source = "two-hosts"
	}
	if why := s.noDriver(); why != "" {
		s.r.step("guests: no ib_write_bw and no rping: %s", why)
		s.o.driver = ""
	}
	if s.lab, err = lab.Make(ctx, s.r.w, source, s.changes()); err != nil {
		return err
	}
	if s.o.driver != "" { // guestlib uses the functions first
		for _, g := range guests {
			if err := s.run(ctx, g, "rmmod", "vnic"); err != nil {
				return err
			}
		}
	}
	s.sniffer, err = s.lab.SniffUplink("a", s.uplinkFile())
	return err
}

// noDriver returns why the guests cannot have the Linux driver, or "".
func (s *labScene) noDriver() string {
	switch {
	case s.o.NoVM:
		return "they need guests"
	case s.o.driver == "":
		return "they need the Linux driver (make demo builds it, --driver names it)"
	case s.o.iommu && !s.o.PCI:
		return "the Linux driver takes no window behind an IOMMU"
	}
	return ""
}

// changes returns what the flags change in the lab's file.
func (s *labScene) changes() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\n", name)
	if s.o.capture != "" {
		b.WriteString("hosts:\n")
		for _, h := range []string{"a", "b"} {
			fmt.Fprintf(&b, "  %s: {config: {capture: {file: %q, mode: %s}}}\n", h, filepath.Join(s.o.Out, h+".pcapng"), s.o.capture)
		}
	}
	if s.o.NoVM {
		return b.String()
	}
	b.WriteString("machines:\n")
	for i, g := range guests {
		fmt.Fprintf(&b, "  %s:\n    guest:\n      memory: 768M\n      qemu: %q\n      iommu: %t\n", g, s.o.qemu, s.o.iommu)
		if i == 1 { // each kind of port is used by one guest
			b.WriteString("      port: tap\n")
		}
		switch {
		case s.o.PCI:
			b.WriteString("      function: vfio-user\n")
		case s.o.Windows:
			b.WriteString("      function: window\n")
		}
		if s.o.driver != "" {
			fmt.Fprintf(&b, "      driver: %q\n", s.o.driver)
		}
		if s.o.kernel != "" {
			fmt.Fprintf(&b, "      kernel: %q\n", s.o.kernel)
		}
	}
	return b.String()
}

func (s *labScene) workload(ctx context.Context, guest int, args ...string) (*exec.Cmd, error) {
	args = append([]string{"vnic", "guest", "workload"}, args...)
	if !s.o.NoVM {
		args = append(args, "--ip", s.lab.Address(guests[guest]))
	}
	if s.o.driver != "" {
		args = append(args, "--verbs", loaded)
	}
	if s.o.PCI {
		args = append(args, "--device", "pci://", "--lspci")
	}
	return s.lab.Command(ctx, guests[guest], args...)
}

// run runs a command in a guest.
func (s *labScene) run(ctx context.Context, guest string, argv ...string) error {
	cmd, err := s.lab.Command(ctx, guest, argv...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s: %w: %s", guest, strings.Join(argv, " "), err, out)
	}
	return nil
}

func (s *labScene) uplinkFile() string { return filepath.Join(s.o.Out, "uplink.pcapng") }

// finish says what the kernel has seen on the uplink of host a. There must be nothing but sealed packets.
func (s *labScene) finish() (err error) {
	n, err := s.sniffer.Close()
	s.sniffer = nil
	s.r.step("uplink of host a: %d PSP, %d ARP, %d ND frames, %d others, all in %s", n.PSP, n.ARP, n.ND, n.ICMPv6+n.Other, s.uplinkFile())
	if n.ICMPv6+n.Other > 0 {
		err = errors.Join(err, fmt.Errorf("%d frames on the uplink were neither PSP nor ARP nor ND: %s", n.ICMPv6+n.Other, strings.Join(n.Others, "; ")))
	}
	if s.o.capture != "" {
		s.r.step("captures: %s (docs/troubleshooting.md says how to read them)", filepath.Join(s.o.Out, "[ab].pcapng"))
	}
	s.r.step("logs and configurations: %s", s.o.Out)
	return err
}

// down keeps the lab's logs and configurations, and removes the lab.
func (s *labScene) down() error {
	var errs []error
	for _, f := range lab.Logs(name) {
		b, err := os.ReadFile(f)
		errs = append(errs, err, os.WriteFile(filepath.Join(s.o.Out, filepath.Base(f)), b, 0o644))
	}
	if s.sniffer != nil {
		_, err := s.sniffer.Close()
		errs = append(errs, err)
	}
	return errors.Join(append(errs, lab.Remove(name))...)
}

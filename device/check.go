package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/udp"
)

// CheckMachine finds what a valid configuration needs and this machine does not have: bridges,
// namespaces, identities, folders, addresses. asServing runs a check with the rights that the NIC
// will have when it serves. CheckMachine creates nothing and does not disturb a running NIC.
func CheckMachine(cfg *config.Config, asServing func(check func() error) error) error {
	awaitAddresses(cfg)
	var errs []error
	add := func(key string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if err := thread.CheckProcessors(cfg.NIC.CPU); err != nil {
		errs = append(errs, err)
	}
	if cfg.Uplink.Type == config.UplinkUDP {
		if err := udp.Check(cfg.Uplink.Own(), cfg.Uplink.MTU); err != nil {
			errs = append(errs, err)
		}
	}
	if cfg.Uplink.Bridge != "" {
		add("uplink.bridge", tap.CheckBridge(cfg.Uplink.Bridge, cfg.Uplink.MTU))
	}
	for _, f := range cfg.AllFunctions() {
		switch p := f.Port; {
		case p == nil:
		case p.Netns != "":
			add(f.String()+".port.netns", tap.CheckNetns(p.Netns))
		case p.Bridge != "":
			add(f.String()+".port.bridge", tap.CheckBridge(p.Bridge, p.MTU))
		}
	}
	if err := asServing(func() error { return CheckIdentity(cfg) }); err != nil {
		errs = append(errs, err)
	}
	if cfg.HasPeers() {
		add("cm.listen", checkAddress(cfg.CM.Listen.Addr().String()))
	}
	if cfg.PSP.KeyLog != "" {
		if err := security.CheckKeyLog(cfg.PSP.KeyLog); err != nil {
			errs = append(errs, err)
		}
	}
	if cfg.Capture != nil {
		add("capture.file", checkFolder(cfg.Capture.File))
	}
	for _, h := range httpServers(cfg, nil, nil) {
		add(h.about+".listen", checkAddress(h.at.Addr().String()))
	}
	if r := cfg.NIC.Recorder; r != nil && r.Folder != "" {
		add("nic.recorder.folder", asServing(func() error { return checkFolder(filepath.Join(r.Folder, "file")) }))
	}
	if cfg.Control != "" {
		add("control", checkFolder(cfg.Control))
	}
	for i := range cfg.Attach {
		if path := cfg.Attach[i].Socket; path != "" {
			add(fmt.Sprintf("attach[%d].socket", i), checkFolder(path))
		}
	}
	return errors.Join(errs...)
}

// CheckIdentity checks that a NIC with peers can read its identity: its certificate, key and the
// rest. It needs to read them also while it serves, as the list of revoked certificates may change.
func CheckIdentity(cfg *config.Config) error {
	if !cfg.HasPeers() {
		return nil
	}
	if _, err := cmlink.Load(cfg.CM.Identity, cfg.CM.Name); err != nil {
		return fmt.Errorf("cm.identity: %w", err)
	}
	return nil
}

// checkFolder checks that files can be created in the folder of path.
func checkFolder(path string) error {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: there is no folder %s: make it, or choose another path", path, filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return accessible(dir)
}

// accessible checks that this process may create files in a folder.
func accessible(dir *os.File) error {
	if err := unix.Faccessat(int(dir.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "write to", Path: dir.Name(), Err: err}
	}
	return nil
}

// newAddress is how long a NIC waits for addresses that are new to this host.
const newAddress = 5 * time.Second

// awaitAddresses waits while the kernel finds out whether somebody else has an IPv6 address at which
// the NIC listens (RFC 4862 §5.4). That takes seconds when the address is new, as on a host that
// starts. Until then no socket can have the address.
func awaitAddresses(cfg *config.Config) {
	wanted := []netip.Addr{cfg.CM.Listen.Addr()}
	if cfg.Uplink.Type == config.UplinkUDP {
		wanted = append(wanted, cfg.Uplink.Own())
	}
	for _, h := range httpServers(cfg, nil, nil) {
		wanted = append(wanted, h.at.Addr())
	}
	unsure := func(a netlink.Addr) bool {
		addr, _ := netip.AddrFromSlice(a.IP)
		return a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_DADFAILED == 0 && slices.Contains(wanted, addr)
	}
	if !slices.ContainsFunc(wanted, netip.Addr.Is6) {
		return
	}
	for end := time.Now().Add(newAddress); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if list, err := netlink.AddrList(nil, netlink.FAMILY_V6); err != nil || !slices.ContainsFunc(list, unsure) {
			return
		}
	}
}

// checkAddress checks that an address is one of this host's. It listens on a free port, not on a
// configured one.
func checkAddress(addr string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%s is not an address of this host: use one that `ip address` lists", addr)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// listenError returns the error for a failed attempt to listen at the address of a configuration
// key, with a remedy.
func listenError(key string, at netip.AddrPort, err error) error {
	var op *net.OpError
	var why syscall.Errno
	if !errors.As(err, &op) || !errors.As(err, &why) {
		return err
	}
	remedy := "choose another address"
	switch why {
	case syscall.EADDRINUSE:
		remedy = "another process listens there, perhaps another vnic run (`ss -ltnp` names it): stop it, or choose another port"
	case syscall.EADDRNOTAVAIL:
		remedy = "it is not an address of this host: use one that `ip address` lists"
	case syscall.EACCES:
		remedy = "ports below 1024 are for root: choose a higher one"
	}
	return fmt.Errorf("%s: %s: %w: %s", key, at, why, remedy)
}

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/config"
)

// The network of a lab. All of it is in namespaces, and made by lines of iproute2:
//
//	NAME                     NAME.a                               NAME.red1
//	 sw0 ═══ a ────────────── cable ═══ br0 ═══ up0 ── vnic run ── red1
//	  ╚═════ b ──…             (the host's own address, 172.16.0.N)
//
// The port in the machine's namespace is the NIC's: it puts the device there when it starts.

// fabric makes the namespace with a bridge for each link.
func (p *plan) fabric() error {
	var lines []string
	for i, k := range p.Links {
		lines = append(lines,
			fmt.Sprintf("link add sw%d type bridge mcast_snooping 0", i),
			fmt.Sprintf("link set dev sw%d mtu %d up", i, k.MTU))
	}
	return makeSpace(p.Name, disableIPv6, lines...)
}

// fabricShape describes what fabric makes.
func (p *plan) fabricShape() string {
	var mtus []string
	for _, k := range p.Links {
		mtus = append(mtus, fmt.Sprint(k.MTU))
	}
	return "links with MTU " + strings.Join(mtus, ", ")
}

// makeNetwork makes a host's namespace and its cable to the link's bridge.
func (h *host) makeNetwork() error {
	mtu := h.Link.MTU
	// The kernel may still be removing the cable of a namespace that was removed just now.
	_ = ip(h.Lab, "link del dev "+h.Name)
	var bridges []string // between the NIC's TAP and QEMU's
	for _, m := range h.bridged() {
		bridges = append(bridges,
			fmt.Sprintf("link add %s type bridge mcast_snooping 0", m.PortBridge()),
			fmt.Sprintf("link set dev %s mtu %d up", m.PortBridge(), mtu),
			fmt.Sprintf("tuntap add %s mode tap", m.GuestTAP()),
			fmt.Sprintf("link set dev %s mtu %d master %s up", m.GuestTAP(), mtu, m.PortBridge()))
	}
	addresses := []string{fmt.Sprintf("addr add %s/16 dev br0", h.KernelAddress())}
	if h.Uplink == config.UplinkUDP { // the NIC's address is the host's, too
		addresses = append(addresses, fmt.Sprintf("addr add %s/16 dev br0", h.Underlay()))
	}
	if err := makeSpace(h.Space(), disableIPv6, slices.Concat([]string{
		fmt.Sprintf("link add br0 address 02:00:00:00:%02x:%02x type bridge mcast_snooping 0", h.Number>>8, h.Number&0xff),
		fmt.Sprintf("link add cable mtu %d type veth peer name %s mtu %d netns %s", mtu, h.Name, mtu, h.Lab),
		"link set dev cable master br0 up",
		fmt.Sprintf("link set dev br0 mtu %d up", mtu),
	}, addresses, bridges)...); err != nil {
		return err
	}
	return ip(h.Lab, fmt.Sprintf("link set dev %s master %s up", h.Name, h.Bridge))
}

func (h *host) shape() string {
	text := fmt.Sprintf("host %d at %s by %s, MTU %d", h.Number, h.Bridge, h.Uplink, h.Link.MTU)
	for _, m := range h.bridged() {
		text += ", " + m.PortBridge()
	}
	return text
}

// bridged lists the guests with a bridge for their ports.
func (h *host) bridged() (ms []*machine) {
	for _, m := range h.Machines {
		if m.Guest != nil && m.Guest.Port == labfile.PortTAP {
			ms = append(ms, m)
		}
	}
	return ms
}

// makeNetwork makes a machine's namespace. The NIC puts the port into it.
func (m *machine) makeNetwork() error { return makeSpace(m.Space(), func() error { return nil }) }

func (m *machine) shape() string {
	return fmt.Sprintf("vf %d of host %s, %s of tenant %d", m.VF, m.Machine.Host, m.Prefix(), m.TenantNumber)
}

// makeSpace makes a namespace, calls prepare in it, and then makes links by lines of iproute2.
func makeSpace(name string, prepare func() error, lines ...string) error {
	if err := errors.Join(ip("", "netns add "+name), inNetns(name, prepare)); err != nil {
		return err
	}
	return ip(name, append([]string{"link set dev lo up"}, lines...)...)
}

// inNetns calls f on a thread that enters a namespace for it.
func inNetns(space string, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := os.Open(filepath.Join(netnsFolder, space))
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network namespace %s: %w", space, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // no other goroutine gets this thread
	}
	runtime.UnlockOSThread()
	return err
}

// disableIPv6 keeps the kernel from sending packets of its own on the links of hosts.
func disableIPv6() error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) { // the kernel has no IPv6
		return nil
	}
	return err
}

// writeHostsFile writes the names and addresses of the machines of a machine's tenant. ip netns exec shows
// that file as /etc/hosts.
func (p *plan) writeHostsFile(m *machine) error {
	dir := filepath.Join(netnsEtc, m.Space())
	if err := os.MkdirAll(dir, folderRights); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hosts"), []byte(p.names(m.TenantNumber)), 0o644)
}

// names returns the names of a tenant's machines in the format of /etc/hosts.
func (p *plan) names(tenant int) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range p.hosts {
		for _, m := range h.Machines {
			if m.TenantNumber == tenant {
				fmt.Fprintf(&b, "%s %s\n", m.Address, m.Name)
			}
		}
	}
	return b.String()
}

// setAddress gives a machine's port its address.
func (m *machine) setAddress() error {
	nodad := ""
	if m.Address.Is6() {
		nodad = " nodad"
	}
	return ip(m.Space(), fmt.Sprintf("addr replace %s dev %s%s", m.Prefix(), m.Name, nodad), "link set dev "+m.Name+" up")
}

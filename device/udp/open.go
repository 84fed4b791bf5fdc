package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
)

// Config describes an uplink.
type Config struct {
	Listen      netip.AddrPort       // an address of the host, or all of one family, with a port
	MTU         int                  // longest IP packet
	Shards      int                  // uplinks to open
	Steer       []bpf.RawInstruction // chooses the socket of a datagram, by its payload; unused with one shard
	Superframes bool                 // whether superframes are sent
	OnePort     bool                 // everything is sent from the port that receives
}

// buffer is how many bytes of datagrams may wait in a socket, as the kernel counts them: many times
// what a thread reads at once.
const buffer = 8 << 20

// Open returns the uplinks of a NIC, one for each shard. Each has an owner of its own, who closes it.
func Open(c Config) (uplinks []tap.Uplink, err error) {
	defer func() {
		if err != nil {
			for _, u := range uplinks {
				_ = u.Close()
			}
			uplinks, err = nil, fmt.Errorf("uplink.listen: %s: %w", c.Listen, explain(c.Listen.Port(), err))
		}
	}()
	for i := range c.Shards {
		fd, err := openListening(&c, i)
		if err != nil {
			return uplinks, err
		}
		uplinks = append(uplinks, newUplink(&c, fd))
	}
	if c.Shards == 1 {
		return uplinks, nil
	}
	program := make([]unix.SockFilter, len(c.Steer))
	for i, in := range c.Steer {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err = unix.SetsockoptSockFprog(uplinks[0].FD(), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &filter)
	return uplinks, os.NewSyscallError("SO_ATTACH_REUSEPORT_CBPF", err)
}

// openListening opens the i-th socket that receives. Only the first is bound without SO_REUSEPORT:
// so it is an error if another program, or another NIC, has the port.
func openListening(c *Config, i int) (int, error) {
	fd, err := open(c.Listen, buffer, i > 0)
	if err != nil {
		return -1, err
	}
	if i == 0 && c.Shards > 1 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	family := []option{{unix.SOL_IP, unix.IP_RECVTOS, 1}, {unix.SOL_IP, unix.IP_RECVTTL, 1}}
	if c.Listen.Addr().Is6() {
		family = []option{{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1}, {unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1}}
	}
	err = errors.Join(err, set(fd, append(family, option{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1})...))
	if e := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1); e != nil && e != unix.ENOPROTOOPT { // Linux before 5.0
		err = errors.Join(err, os.NewSyscallError("UDP_GRO", e))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// openPath opens a socket that only sends, from any port of an address. What comes to it is dropped
// by a filter.
func openPath(from netip.Addr) (int, error) {
	fd, err := open(netip.AddrPortFrom(from, 0), 0, false)
	if err != nil {
		return 0, err
	}
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]}); err != nil {
		return 0, errors.Join(os.NewSyscallError("SO_ATTACH_FILTER", err), unix.Close(fd))
	}
	return fd, nil
}

// option is a socket option.
type option struct{ level, name, value int }

func set(fd int, options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("option %d of level %d: %w", o.name, o.level, os.NewSyscallError("setsockopt", err))
		}
	}
	return nil
}

// open opens a socket that sends unfragmented packets with the most hops, and binds it. receive is
// the size of its buffer for received datagrams.
func open(at netip.AddrPort, receive int, reuse bool) (_ int, err error) {
	var domain int
	var options []option
	var addr unix.Sockaddr
	if at.Addr().Is4() {
		domain, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
		options = []option{{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}, {unix.SOL_IP, unix.IP_TTL, 255}}
	} else {
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		options = []option{
			{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 255},
		}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	enlarge(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, buffer)
	if receive > 0 {
		enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive)
	}
	if reuse {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	if err := set(fd, options...); err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("bind", unix.Bind(fd, addr))
}

// enlarge sets the size of a buffer: beyond the host's limit (net.core.rmem_max, wmem_max) with
// CAP_NET_ADMIN, else up to it.
func enlarge(fd, force, upTo, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, upTo, size)
	}
}

// explain adds the remedy to an error of Open.
func explain(port uint16, err error) error {
	remedy := ""
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		remedy = "another program has this port, perhaps another vnic run (`ss -lunp` names it): stop it, or choose another port"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		remedy = "it is not an address of this host: use one that `ip address` lists"
	case errors.Is(err, unix.EACCES) && port < 1024:
		remedy = "ports below 1024 are for root (CAP_NET_BIND_SERVICE): choose a higher one, and write it at the peers too"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, remedy)
}

// Check returns an error if at is not an address of this host, or its interface has a smaller MTU.
func Check(at netip.Addr, mtu int) error {
	if at.IsUnspecified() {
		return nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addrs {
			if p, ok := a.(*net.IPNet); ok && p.IP.Equal(at.AsSlice()) {
				if i.MTU < mtu {
					return fmt.Errorf("uplink.mtu: %d, but %s with %s has an MTU of %d: lower uplink.mtu, or raise the interface's", mtu, i.Name, at, i.MTU)
				}
				return nil
			}
		}
	}
	return fmt.Errorf("uplink.listen: %w", explain(0, fmt.Errorf("%s: %w", at, unix.EADDRNOTAVAIL)))
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// Measurement is a line of the client's output.
type Measurement struct {
	System string `json:"system"` // rxe or vnic
	Test   string `json:"test"`   // write_bw or write_lat
	Output string `json:"output"` // of the program
}

// tests are the programs with the flags that both systems get. Both poll.
var tests = []struct {
	name  string
	flags []string
}{
	{"write_bw", []string{"-s", "65536", "-n", "500"}},
	{"write_lat", []string{"-s", "64", "-n", "1000"}},
}

// patience is the time limit of one measurement, with the wait for the peer.
const patience = 5 * time.Minute

func main() {
	if guestinit.Active() {
		guestinit.Run(os.Args[1:])
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "perfguest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 1 && args[0] == "programs" {
		return programs(strings.Split(args[1], "+"), args[2:])
	}
	if len(args) != 5 {
		return fmt.Errorf("usage: perfguest server|client IP/BITS PEER-IP PEER-GID RUNS | programs IP/BITS[+…] COMMAND…, got %q", args)
	}
	client := args[0] == "client"
	runs, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	if err := makeRXE(args[1]); err != nil {
		return err
	}
	gid, err := gidIndex(args[1])
	if err != nil {
		return err
	}
	for range runs {
		for _, t := range tests {
			rxe := append([]string{"ib_" + t.name, "-d", "rxe0", "-x", gid, "-F"}, t.flags...)
			vnic := append([]string{"vnic", "guest", "perf", t.name}, t.flags...)
			if client {
				rxe, vnic = append(rxe, args[2]), append(vnic, args[3])
			}
			for _, m := range []struct {
				system string
				argv   []string
			}{{"rxe", rxe}, {"vnic", vnic}} {
				out, err := measure(m.argv)
				if err != nil {
					return err
				}
				if client {
					if err := json.NewEncoder(os.Stdout).Encode(Measurement{m.system, t.name, out}); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// programs runs commands one after the other on a Soft-RoCE device whose interface has the
// addresses. The words of a command are joined by commas; @0 and so on stand for the GIDs of the
// addresses.
func programs(addresses, commands []string) error {
	if err := makeRXE(addresses...); err != nil {
		return err
	}
	gids := make([]string, len(addresses))
	for i, a := range addresses {
		gid, err := gidIndex(a)
		if err != nil {
			return err
		}
		gids[i] = gid
	}
	for _, c := range commands {
		argv := strings.Split(c, ",")
		for i, w := range argv {
			if n, err := strconv.Atoi(strings.TrimPrefix(w, "@")); w != "" && w[0] == '@' && err == nil && n < len(gids) {
				argv[i] = gids[n]
			}
		}
		out, err := measure(argv)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(Measurement{"rxe", c, out}); err != nil {
			return err
		}
	}
	return nil
}

// makeRXE gives eth0 addresses and puts a Soft-RoCE device on it.
func makeRXE(addresses ...string) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	for _, a := range addresses {
		ip, network, err := net.ParseCIDR(a)
		if err != nil {
			return err
		}
		network.IP = ip
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("eth0 with %s: %w", a, err)
		}
	}
	err = netlink.LinkSetUp(link)
	if err == nil {
		err = netlink.RdmaLinkAdd("rxe0", "rxe", "eth0")
	}
	if err != nil {
		return fmt.Errorf("rxe0 on eth0 with %s: %w", addresses, err)
	}
	return nil
}

// gidIndex waits for the GID of an IPv4 address in the table of rxe0. The kernel fills the table by
// itself, in the order in which eth0 gets its addresses.
func gidIndex(address string) (string, error) {
	ip, _, err := net.ParseCIDR(address)
	if err != nil {
		return "", err
	}
	const gids = "/sys/class/infiniband/rxe0/ports/1/gids"
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		entries, _ := os.ReadDir(gids)
		for _, e := range entries {
			text, _ := os.ReadFile(filepath.Join(gids, e.Name()))
			if ip.Equal(net.ParseIP(strings.TrimSpace(string(text)))) {
				return e.Name(), nil
			}
		}
	}
	return "", fmt.Errorf("%s: no GID of %s within %v", gids, ip, patience)
}

// measure runs a program until it succeeds: perftest's client fails while its server does not run
// yet.
func measure(argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer report(argv)()
	for {
		out, err := exec.CommandContext(ctx, "/bin/"+argv[0], argv[1:]...).CombinedOutput()
		switch {
		case err == nil:
			return string(out), nil
		case ctx.Err() != nil:
			return "", fmt.Errorf("%q: %w within %v: %s", argv, err, patience, out)
		}
		fmt.Fprintf(os.Stderr, "perfguest: %q: %v, again\n%s", argv, err, out)
		time.Sleep(200 * time.Millisecond)
	}
}

// reportEvery is the time between two reports about a program that still runs.
const reportEvery = 30 * time.Second

// report prints the state of the interface and the RDMA device on the console while a program takes
// long, until end is called.
func report(argv []string) (end func()) {
	begun, every, done := time.Now(), time.NewTicker(reportEvery), make(chan struct{})
	go func() {
		for {
			select {
			case <-every.C:
				fmt.Fprintf(os.Stderr, "perfguest: %q runs since %v\n%s", argv, time.Since(begun), state())
			case <-done:
				return
			}
		}
	}()
	return func() { every.Stop(); close(done) }
}

// state returns the kernel's counters.
func state() string {
	var b strings.Builder
	for _, pattern := range []string{
		"/proc/loadavg", "/proc/net/dev", "/proc/net/arp", "/proc/softirqs", "/proc/interrupts", "/sys/class/infiniband/rxe0/hw_counters/*",
		"/sys/class/infiniband/rxe0/ports/1/hw_counters/*",
	} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				text = []byte(err.Error() + "\n")
			}
			fmt.Fprintf(&b, "%s: %s", f, text)
		}
	}
	return b.String()
}

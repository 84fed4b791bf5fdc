package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Ranges of the wire formats.
const (
	maxPF        = 15
	maxVF        = 4095
	minUplinkMTU = 576
	minIPv6MTU   = 1280  // RFC 8200 §5
	maxUplinkMTU = 65521 // the TAP driver's limit
	maxIfName    = 15

	minRotateEvery = time.Second
	maxRotateEvery = 30 * 24 * time.Hour
	maxSpin        = 10 * time.Millisecond
	minKeepalive   = time.Second
	maxKeepalive   = 10 * time.Minute
	minGuestMemory = Size(1 << 30)
	maxGuestMemory = Size(64 << 40) // half of what a process can address
	minWatchdog    = time.Second    // an idle thread makes a turn every half second
	maxQueues      = 16             // tap.MaxQueues
	minUplinkSpeed = Rate(10e6)
	maxUplinkSpeed = Rate(4e12) // RegSpeed has 32 bits of Mbit/s, ib_port_attr less
)

// oneOf reports a value that is not one of the choices.
func oneOf(r *report, path, value string, choices ...string) {
	for _, c := range choices {
		if value == c {
			return
		}
	}
	what := fmt.Sprintf("%q is not known", value)
	if value == "" {
		what = "missing"
	}
	r.add(path, what, "write one of "+strings.Join(choices, ", "))
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// usable reports whether a host can have the address a.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != broadcast
}

// checkIfName reports a name that the kernel does not accept for a network device.
func checkIfName(r *report, path, name string) {
	switch {
	case len(name) > maxIfName:
		r.add(path, fmt.Sprintf("%q has %d characters", name, len(name)), fmt.Sprintf("use at most %d", maxIfName))
	case name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n%"):
		r.add(path, fmt.Sprintf("%q is not a network device name", name), "use letters, digits, - and _")
	}
}

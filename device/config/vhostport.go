package config

import (
	"fmt"
	"strconv"
)

// Who makes the socket of a port of type vhost-user.
const (
	ListenNIC   = "nic"   // the NIC listens, the guest's QEMU connects
	ListenGuest = "guest" // QEMU listens (server=on), and the NIC connects, and reconnects if needed
)

// MaxPortQueues is the maximum number of queue pairs of a guest's port.
const MaxPortQueues = 16

// maxSocketPath is the longest path that fits into struct sockaddr_un.
const maxSocketPath = 107

// checkVhostUser checks the settings that only ports in guests' memory have.
func (p *Port) checkVhostUser(r *report, who string, taken *Taken) {
	path := who + ".port"
	oneOf(r, path+".listen", p.Listen, ListenNIC, ListenGuest)
	switch other, dup := by(taken.names, p.Socket, who); {
	case p.Socket == "":
		r.add(path+".socket", "missing", "name the unix socket that the guest's QEMU uses, as /run/vnic/vm1-net.sock")
	case len(p.Socket) > maxSocketPath:
		r.add(path+".socket", fmt.Sprintf("%q has %d bytes, a socket's path may have %d", p.Socket, len(p.Socket), maxSocketPath), "choose a shorter folder")
	case dup:
		r.inUse(path+".socket", fmt.Sprintf("%q is already that of %s", p.Socket, other), "give each port its own")
	}
	if other, dup := by(taken.names, p.Name, who); dup {
		r.inUse(path+".name", fmt.Sprintf("%s is already that of %s", r.value(path+".name", strconv.Quote(p.Name)), other), "give each port its own name")
	}
	if p.Queues < 1 || p.Queues > MaxPortQueues {
		r.add(path+".queues", fmt.Sprintf("%d is out of range", p.Queues), fmt.Sprintf("use 1 to %d pairs", MaxPortQueues))
	}
	for _, x := range []struct {
		key string
		is  bool
	}{{"mode", p.Mode != ""}, {"bridge", p.Bridge != ""}, {"netns", p.Netns != ""}, {"mac", !p.MAC.IsZero()}, {"persist", p.Persist}} {
		if x.is {
			r.add(path+"."+x.key, "a port of type vhost-user has no kernel device", "leave it out, or use type tap")
		}
	}
}

package roce_test

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

type host struct{ e **roce.Engine }

// CreditsChanged implements transport.Host.
func (h host) CreditsChanged() { (*h.e).CreditsChanged() }

// world is two NICs with a function each and a wire between them, in virtual time.
type world struct {
	engines [2]*roce.Engine
	ports   [2]*roce.Port
	links   [2]*sim.Link // from each
	packet  [9000]byte
	sees    func(from int, packet []byte) // every packet that is sent; nil: nobody
}

var addresses = map[bool][2]string{false: {"10.0.0.1", "10.0.0.2"}, true: {"fd00::1", "fd00::2"}}

func newWorld(seed uint64, v6 bool, mtu int, net sim.Impairment) *world {
	w := &world{}
	for i := range w.engines {
		w.engines[i] = roce.New(host{&w.engines[i]})
		w.ports[i] = w.engines[i].NewPort(netip.MustParseAddr(addresses[v6][i]), mtu, nil).(*roce.Port)
		w.links[i] = sim.NewLink(seed*2+uint64(i), net)
	}
	return w
}

// connect opens the end of a connection at a NIC.
func (w *world) connect(i int) *roce.Conn {
	return w.ports[i].Open(0, transport.Way{Peer: w.ports[1-i].Addr}, nil).(*roce.Conn)
}

// step does all that can be done at now.
func (w *world) step(now transport.Time) (next transport.Time) {
	for {
		busy := false
		for i, e := range w.engines {
			for {
				f, ok := w.links[1-i].Receive(now)
				if !ok {
					break
				}
				busy = true
				if f.CE {
					mark(f.Data)
				}
				w.ports[i].Receive(now, f.Data)
			}
			e.Run(now)
			for n, _ := e.Transmit(now, w.packet[:]); n > 0; n, _ = e.Transmit(now, w.packet[:]) {
				busy = true
				if w.sees != nil {
					w.sees(i, w.packet[:n])
				}
				w.links[i].Send(now, w.packet[:n])
			}
			busy = busy || e.Ready()
		}
		if !busy {
			return min(w.engines[0].Deadline(), w.engines[1].Deadline(), w.links[0].Deadline(), w.links[1].Deadline())
		}
	}
}

// mark sets congestion experienced.
func mark(packet []byte) {
	if packet[0]>>4 == 4 {
		packet[1] |= 3
	} else {
		packet[1] |= 3 << 4
	}
}

package gateway

import "testing"

// TestCountersOfAnExchange: frames from port to port, to the tunnel and from it are counted exactly (F65).
func TestCountersOfAnExchange(t *testing.T) {
	n := newNetwork(t)
	const headers, ip = 42, 28
	n.send(udp(t, gwA, macA, ipA, ipB, 100), Offload{})
	n.wrote()
	if packets := n.send(udp(t, gwA, macA, ipA, ipC, 200), Offload{}); len(packets) != 1 {
		t.Fatalf("%d packets to the peer", len(packets))
	}
	n.g.FromTunnel(n.g.Tunnel(2, 7), udp(t, macA, gwA, ipC, ipA, 300), 0)
	n.wrote()
	n.send(udp(t, gwA, macB, ipA, ipC, 1), Offload{}) // another's MAC
	want := Stats{
		Reasons:   [Reasons]uint64{DropSourceMAC: 1},
		FromPorts: 3, FromPortBytes: headers*3 + 100 + 200 + 1, ToPorts: 2, ToPortBytes: headers*2 + 100 + 300, Local: 1,
		TunnelIn: 1, TunnelInBytes: ip + 300,
	}
	if got := *n.g.Stats(); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// wrote is a device that writes all that waits.
func (n *network) wrote() {
	for _, f := range n.g.Output() {
		n.g.Wrote(&f)
	}
	n.g.Done()
}

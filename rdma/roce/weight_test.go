package roce_test

import (
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// flood is a port whose connections always have WRITEs to send.
type flood struct {
	port     *roce.Port
	conns    []*roce.Conn
	requests []transport.Request
	sent     int // bytes
}

// newFlood makes one with some connections. credits is the function's share of the NIC's.
func newFlood(t *testing.T, e *roce.Engine, addr string, weight, conns int, credits *credit.Node) *flood {
	t.Helper()
	f := &flood{port: e.NewPort(netip.MustParseAddr(addr), 1500), requests: make([]transport.Request, conns)}
	f.port.SetWeight(weight)
	for i := range conns {
		c := f.port.Open(0, roce.Way{Peer: netip.MustParseAddr("10.0.0.9")}, credits)
		attachMTU(t, c, &target{serving: true}, uint32(100+i), uint32(200+i), 1024)
		f.conns = append(f.conns, c)
	}
	return f
}

// refill has every connection issue as much as it may.
func (f *flood) refill(t *testing.T, now transport.Time) {
	for i, c := range f.conns {
		for {
			r := &f.requests[i]
			if r.Issued || r.Length == 0 {
				*r = transport.Request{Length: 1 << 30, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
			}
			if _, err := c.Issue(now, r); err == transport.ErrFailed {
				t.Fatal(r.Status)
			} else if err != nil {
				break
			}
		}
	}
}

// TestWeights: what functions send is shared by their weights, however many connections they have.
func TestWeights(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{})
	e := w.engines[0]
	floods := []*flood{newFlood(t, e, "10.0.1.1", 1, 8, nil), newFlood(t, e, "10.0.1.2", 3, 4, nil)}
	by := map[*roce.Port]*flood{}
	for _, f := range floods {
		by[f.port] = f
		f.refill(t, 1e9)
	}
	for range 160 { // no connection gets to the end of its window
		n, from := e.Transmit(1e9, w.packet[:])
		if n == 0 {
			t.Fatal("nothing to send")
		}
		by[from].sent += n
	}
	if share := float64(floods[1].sent) / float64(floods[0].sent); share < 2.7 || share > 3.3 {
		t.Errorf("%d and %d bytes: %.2f times, want 3", floods[0].sent, floods[1].sent, share)
	}
}

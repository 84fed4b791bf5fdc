package shard

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// overRoCE makes the functions of worlds in virtual time use RoCEv2: each has a port, and queue
// pairs that otherwise connect by the connection manager name the peer's queue pair.
var overRoCE bool

// speakRoCE configures a NIC for that.
func speakRoCE(c *config.Config) {
	c.RDMA.Transport = config.TransportRoCE
	c.Peers[0].Tenants = []uint32{7, 8}
	vfs := c.Functions[0].VFs
	for i := range vfs {
		if vfs[i].Port == nil && vfs[i].Address.IsValid() {
			vfs[i].Port = &config.Port{Name: fmt.Sprintf("rp%d", vfs[i].VF)}
		}
	}
	c.SetPortDefaults()
}

// TestAboveRoCE runs the tests of everything above the wires again, over RoCEv2.
func TestAboveRoCE(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"rates": TestRateLimit, "link state": TestLinkState,
		"violations": TestViolations, "evidence": TestEvidence, "evidence after a fault": TestEvidenceAfterFault,
		"receives too long": TestReceiveTooLong, "forbidden access": TestForbiddenAccess, "reserved bytes": TestReservedBytes,
		"drivers' faults": TestDriverFaults, "queues' faults": TestQueueFaults, "injected faults": TestAttackByFaults,
	} {
		t.Run(name, func(t *testing.T) {
			overRoCE = true
			t.Cleanup(func() { overRoCE = false })
			test(t)
		})
	}
}

// speaksRoCE sets overRoCE until the test ends.
func speaksRoCE(t *testing.T) {
	overRoCE = true
	t.Cleanup(func() { overRoCE = false })
}

// TestRoCECredits: two functions send over RoCEv2 through a NIC whose credits are enough for a few
// packets. Both make progress, and in the end all credits are back, of the NIC, the host and the
// functions.
func TestRoCECredits(t *testing.T) {
	speaksRoCE(t)
	v := newVirtualWith(t, 6, wire100us, func(_ int, c *config.Config) {
		c.Credits.NIC.RequestPacketTx, c.Credits.Host.RequestPacketTx = 16, 16
	})
	a, b := pair(v)
	c, d := newDriver(v, 0, 2), newDriver(v, 1, 2)
	c.setUp()
	d.setUp()
	c.connectTo(d, 5)
	ends, done := [2][2]*driver{{a, b}, {c, d}}, [2]int{}
	post := func(i int) {
		op := []abi.Opcode{abi.OpWrite, abi.OpRead}[done[i]%2]
		ends[i][0].send(op, 0, 50_000, ends[i][1], 0)
	}
	for i := range ends {
		for range 4 {
			post(i)
		}
	}
	const each = 60
	v.until("all requests", func() bool {
		for i := range ends {
			for cqe, ok := ends[i][0].completion(); ok; cqe, ok = ends[i][0].completion() {
				if cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				if done[i]++; done[i] <= each-4 {
					post(i)
				}
				if fewer := done[1-i]; done[i] == each/2 && fewer < each/8 {
					t.Errorf("function %d has done %d requests, the other %d", i, done[i], fewer)
				}
			}
		}
		return done[0] == each && done[1] == each
	})
	if waits := (View{a.shard()}).Counters()["rdma.credit_waits"]; waits == 0 {
		t.Error("nobody waited for credits")
	}
	var nodes []control.CreditNode
	for _, s := range v.nics[0] {
		nodes = append(nodes, View{s}.CreditRoots()...)
	}
	for _, x := range []*driver{a, c} {
		nodes = append(nodes, View{x.shard()}.Credits(x.fn.ID)...)
	}
	for _, n := range nodes {
		for counter, used := range n.InUse {
			if used != 0 {
				t.Errorf("%s %s: %d of %s in use at the end", n.Level, n.Name, used, counter)
			}
		}
	}
}

// TestRoCEConnections checks that connections over RoCEv2 are listed with Falcon's.
func TestRoCEConnections(t *testing.T) {
	speaksRoCE(t)
	v := newVirtual(t, 7, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 5000)
	v.idle(5e6)
	list := View{a.shard()}.Connections(v.now, a.fn.ID)
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	c := list[0]
	if c.Wire != "roce" || c.State != "ESTABLISHED" || c.QPN != a.qpn || c.PeerQPN != b.qpn || c.PeerAddress != b.fn.Addr.String() ||
		c.Function != a.fn.ID.String() || c.MTU != 1024 || c.Tenant != 7 || c.Cwnd == 0 || c.RTTNS < 100_000 || c.AgeMS < 5 {
		t.Errorf("%+v", c)
	}
	b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
	a.send(abi.OpWrite, 0, 100, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
		t.Fatal(cqe.Status)
	}
	v.idle(1e6)
	if list = (View{a.shard()}).Connections(v.now, a.fn.ID); len(list) != 1 || list[0].State == "ESTABLISHED" || list[0].Retransmits == 0 {
		t.Errorf("%+v", list)
	}
	v.idle(3e9)
	if list = (View{b.shard()}).Connections(v.now, b.fn.ID); len(list) != 0 {
		t.Errorf("of a queue pair that is gone: %+v", list)
	}
}

// TestRoCEPortComes checks that a function whose port is added while it has a driver connects its
// waiting queue pair by RoCEv2, and continues when the port is replaced.
func TestRoCEPortComes(t *testing.T) {
	speaksRoCE(t)
	v := newVirtual(t, 8, wire100us)
	a, b := newDriver(v, 0, 1), other(v)
	port := a.shard().plain.byID[a.fn.ID]
	ports := a.shard().Ports()
	a.shard().plain.leave(port)
	a.setUp()
	b.setUp()
	if a.roceOf() != nil {
		t.Fatal("a function without a port is in the network")
	}
	wiredPair(v, a, b, true)
	if list := (View{b.shard()}).Connections(v.now, b.fn.ID); len(list) != 0 {
		t.Errorf("with an address that nobody has yet: %+v", list)
	}
	for range 2 {
		port = &Port{ID: a.fn.ID, Config: port.Config}
		if err := ports.Add(port, func() error { return nil }, func() {}); err != nil {
			t.Fatal(err)
		}
		v.idle(5e9)
		exchange(t, a, b, 5000)
		exchange(t, b, a, 5000)
		if s := a.roceOf().Stats(); s.Sent == 0 || s.Received == 0 {
			t.Errorf("%+v", s)
		}
		a.shard().plain.leave(port)
	}
}

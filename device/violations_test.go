package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTheOperatorSeesADriversViolations checks that the operator sees the violations of a real session.
func TestTheOperatorSeesADriversViolations(t *testing.T) {
	w := newWorld(t)
	e := newEndpoint(t, w.open(0, "pf0.vf1"))
	if _, err := e.dev.Listen(testContext(t), abi.FirstReservedService); err == nil {
		t.Fatal("a reserved service")
	}
	told, err := e.dev.Violations(testContext(t))
	if err != nil || len(told) != 1 || told[0].Clause != 911 {
		t.Errorf("the driver is told %+v, %v", told, err)
	}
	list, err := w.nics[0].Violations(context.Background())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	if v := list[0]; v.Function != "h1.pf0.vf1" || v.Clause != "DRV-911" || v.Ring != "admin" || v.Count != 1 || !strings.HasPrefix(v.Bytes, fmt.Sprintf("%02x00", uint16(abi.AdminOpCMListen))) {
		t.Errorf("%+v", v)
	}
}

// TestTheOperatorSeesWhyAWorkRequestFailed checks that the operator sees in words what was wrong with a work request of a
// real session. It breaks no rule, so the driver cannot query it.
func TestTheOperatorSeesWhyAWorkRequestFailed(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, a, b, 7)
	pd, err := a.dev.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	buf, err := a.dev.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := pd.RegMR(ctx, buf, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&guestlib.SendWR{ID: 1, Opcode: abi.OpSend, SGL: []guestlib.SGE{elsewhere.SGE(0, 8)}, Flags: guestlib.Signaled}); err != nil {
		t.Fatal(err)
	}
	if c := a.next(t); c.Status != abi.WCLocProtErr {
		t.Fatalf("%+v", c)
	}
	list, err := w.nics[0].Violations(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	if v := list[0]; v.Clause != "" || v.Ring != "SQ" || v.Count != 1 || !strings.HasPrefix(v.What, "WQE 0: SGE 0: lkey ") || !strings.HasSuffix(v.What, "is of another protection domain than the queue (local protection error)") {
		t.Errorf("%+v", v)
	}
	if told, err := a.dev.Violations(ctx); err != nil || len(told) != 0 {
		t.Errorf("the driver is told %+v, %v", told, err)
	}
}

// TestGuestlibBreaksNoRule checks that guestlib breaks no rule that a strict NIC can see: with every
// operation and size both ways, sleeping and polling, reset and end.
func TestGuestlibBreaksNoRule(t *testing.T) {
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(_ int, c *config.Config) { c.NIC.Strict = true })
	ctx := testContext(t)
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() {
			peer, err := guestlib.ParseGID(fmt.Sprintf("192.168.100.%d1", 2-i))
			if err == nil {
				err = workload.Run(ctx, workload.Config{URL: "unix://" + w.sockets[i] + "?function=pf0.vf1", PeerGID: peer, First: i == 0, Service: 4791, Count: 3})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	d := w.open(0, "pf0.vf2")
	newEndpoint(t, d)
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	newEndpoint(t, d)
	d.Close()
	for i, n := range w.nics {
		if list, err := n.Violations(ctx); err != nil || len(list) != 0 {
			t.Errorf("NIC %d: %+v, %v", i+1, list, err)
		}
	}
}

// TestGuestlibBreaksNoRuleInRESET checks that queue pairs of guestlib go to RESET and are connected and
// wired again, with as little to say for a strict NIC.
func TestGuestlibBreaksNoRuleInRESET(t *testing.T) {
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(_ int, c *config.Config) { c.NIC.Strict = true })
	ctx := testContext(t)
	a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	for round := range uint64(4) {
		if round%2 == 0 {
			connect(t, a, b, 7+round)
		} else if err := errors.Join(a.qp.Wire(ctx, b.qp.Address()), b.qp.Wire(ctx, a.qp.Address())); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&guestlib.SendWR{ID: round, Opcode: abi.OpWrite, SGL: []guestlib.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: guestlib.Signaled}); err != nil {
			t.Fatal(err)
		}
		if c := a.next(t); c.ID != round || c.Err() != nil {
			t.Fatalf("%+v", c)
		}
		for _, q := range []*guestlib.QP{a.qp, b.qp} {
			if err := errors.Join(
				q.PostRecv(&guestlib.RecvWR{}), // nothing uses it
				q.Modify(ctx, guestlib.QPAttr{Mask: abi.QPAttrState, State: abi.QPStateReset}),
				q.Modify(ctx, guestlib.QPAttr{Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: allAccess}),
			); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, n := range w.nics {
		if list, err := n.Violations(ctx); err != nil || len(list) != 0 {
			t.Errorf("NIC %d: %+v, %v", i+1, list, err)
		}
	}
}

// TestTheOperatorCanClearViolations checks that the operator can clear the violations of drivers, and that later
// ones are recorded again.
func TestTheOperatorCanClearViolations(t *testing.T) {
	w := newWorld(t)
	e := newEndpoint(t, w.open(0, "pf0.vf1"))
	for range 2 {
		if _, err := e.dev.Listen(testContext(t), abi.FirstReservedService); err == nil {
			t.Fatal("a reserved service")
		}
		list, err := w.nics[0].ClearViolations(t.Context())
		if err != nil || len(list) != 1 || list[0].Clause != "DRV-911" || list[0].Count != 1 {
			t.Errorf("%+v %v", list, err)
		}
		if list, err = w.nics[0].Violations(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("left: %+v %v", list, err)
		}
	}
}

// TestADriverReadsTheCountersOfItsFunction checks that a driver can read all counters of the ABI, for its own function.
func TestADriverReadsTheCountersOfItsFunction(t *testing.T) {
	w := newWorld(t)
	e := newEndpoint(t, w.open(0, "pf0.vf1"))
	list, err := e.dev.Counters(testContext(t))
	if err != nil || len(list) != int(abi.CounterNotificationsHandled)+1 || list[abi.CounterDoorbells] != 0 {
		t.Errorf("%d, %v", list, err)
	}
	if s := e.dev.Info().Speed; s != 100_000 {
		t.Errorf("the port has %d Mbit/s", s)
	}
}

package shard

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestADriversFaultStopsItsOwnFunctionOnly makes one driver break each rule. Its function stops with a reason, and a
// neighbour on the same NIC is not affected.
func TestADriversFaultStopsItsOwnFunctionOnly(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(d *driver)
		want abi.Fault
		text string
	}{
		{"admin doorbell past the ring", func(d *driver) { d.ring(abi.DoorbellAdmin, 0, 1000) }, abi.FaultCommand, "ahead of the producer"},
		{"memory of the admin queue taken away", func(d *driver) {
			d.b.Memory.SetRegions([]queues.Region{{Addr: driverBase + 8*pageSize, Mem: d.mem[8*pageSize:]}})
			d.ring(abi.DoorbellAdmin, 0, d.sq.Next()+1)
		}, abi.FaultCommand, "admin submission queue"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := pair(v)
			bad := newDriver(v, 0, 2)
			bad.setUp()
			other := newDriver(v, 1, 2)
			other.setUp()
			bad.connectTo(other, 100)
			tc.do(bad)
			e := bad.event(abi.EventFunctionFault)
			code, reason := bad.fn.Lifecycle.Fault()
			if abi.Fault(e.Status) != tc.want || code != tc.want || bad.fn.Lifecycle.State() != abi.StateError {
				t.Errorf("fault %s (event %s), state %s, want %s; reason %q", code, abi.Fault(e.Status), bad.fn.Lifecycle.State(), tc.want, reason)
			}
			if !strings.Contains(reason, tc.text) || len(reason) < 20 {
				t.Errorf("reason %q does not say what happened", reason)
			}
			if !overRoCE { // the peer cannot be told
				other.event(abi.EventDisconnected)
			}
			if bad.fn.Verbs() != nil || len(bad.fn.conns.IDs()) != 0 {
				t.Error("resources of the faulty function are held")
			}
			exchange(t, a, b, 5000)
			// After a reset the function works again.
			bad.b.Memory.SetRegions([]queues.Region{{Addr: driverBase, Mem: bad.mem}})
			bad.write(abi.RegControl, 4, uint64(abi.ControlReset))
			clear(bad.mem)
			bad.setUp()
			other.createQPAgain()
			bad.connectTo(other, 101)
		})
	}
}

// TestAQueuesFaultStopsItsQueuePairOnly checks that an error in the memory of one queue, or in its doorbell, stops only
// its queue pair, and that the driver is told why; the function goes on. (DEV-612)
func TestAQueuesFaultStopsItsQueuePairOnly(t *testing.T) {
	for name, do := range map[string]func(d *driver){
		"SQ doorbell past the ring": func(d *driver) { d.ring(abi.DoorbellSQ, d.qpn, 1000) },
		"RQ doorbell past the ring": func(d *driver) { d.ring(abi.DoorbellRQ, d.qpn, 1000) },
		"producer out of range": func(d *driver) {
			binary.LittleEndian.PutUint32(d.page(pageSQ), 1<<20)
			d.ring(abi.DoorbellSQ, d.qpn, 1)
		},
		"memory taken away": func(d *driver) {
			d.b.Memory.SetRegions([]queues.Region{{Addr: driverBase, Mem: d.mem[:pageSQ*pageSize]}})
			d.ring(abi.DoorbellSQ, d.qpn, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := pair(v)
			bad, other := newDriver(v, 0, 2), newDriver(v, 1, 2)
			bad.setUp()
			other.setUp()
			bad.connectTo(other, 100)
			do(bad)
			if e := bad.event(abi.EventQPFatal); e.Number != bad.qpn || e.Status != uint32(abi.WCLocQPOpErr) || e.PrivLen == 0 {
				t.Errorf("%+v", e)
			}
			if s := bad.fn.Lifecycle.State(); s != abi.StateReady {
				t.Errorf("the function is in %s", s)
			}
			bad.must(abi.AdminOpAllocPD, nil)
			exchange(t, a, b, 5000)
		})
	}
}

// createQPAgain creates a new QP in place of the old one.
func (d *driver) createQPAgain() {
	d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
	clear(d.mem[pageSQ*pageSize : (pageRQ+8)*pageSize])
	d.createQP()
}

// TestQueuesOutsideMemory checks that addresses outside the guest's memory are refused by the
// command, and for the admin queues by a fault. (DEV-302, DEV-405)
func TestQueuesOutsideMemory(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.write(abi.RegAdminSQ, 8, driverBase+driverMem)
	d.write(abi.RegAdminCQ, 8, d.list(listAdminCQ, pageAdminCQ, 1))
	d.write(abi.RegAdminEntries, 4, 16)
	d.write(abi.RegControl, 4, uint64(abi.ControlEnable))
	if code, reason := d.fn.Lifecycle.Fault(); code != abi.FaultMemory || !strings.Contains(reason, "admin submission queue at 0x100400000") {
		t.Errorf("%s: %s", code, reason)
	}
	d.write(abi.RegControl, 4, uint64(abi.ControlReset))
	d.setUp()
	for _, c := range []struct {
		op     abi.AdminOp
		params marshaler
	}{
		{abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 8, Levels: 1, Pages: driverBase + driverMem}},
		{abi.AdminOpRegMR, &abi.RegMR{PDN: d.pdn, Length: 4096, Pages: 1 << 50, Levels: 1}},
		{abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, DGID: d.fn.GID(), Priv: 1 << 50, PrivLen: 8}},
	} {
		if st, _ := d.command(c.op, c.params); st != abi.StatusMemoryFault {
			t.Errorf("%s: %s, want %s", c.op, st, abi.StatusMemoryFault)
		}
	}
	if d.fn.Lifecycle.State() != abi.StateReady {
		t.Error("a refused command stopped the function")
	}
}

// TestEachAdminCommandGetsItsStatus checks the answers to admin commands that need no peer. (DEV-504)
func TestEachAdminCommandGetsItsStatus(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, func(_ int, c *config.Config) {
		f := &c.Functions[0].VFs[0]
		f.MAC = config.MAC{0x06, 0x12, 0x34, 0x56, 0x78, 0x9a}
		f.Limits.QP, f.Limits.CQ, f.Limits.MR, f.Limits.PD = 101, 102, 103, 104
		f.Limits.QPEntries, f.Limits.CQEntries, f.Limits.ReadAtomic = 2048, 1<<17, 32
	})
	d := newDriver(v, 0, 1)
	d.setUp()
	var q abi.QueryDeviceResult
	q.Unmarshal(d.must(abi.AdminOpQueryDevice, nil))
	want := abi.QueryDeviceResult{
		MaxMRSize: abi.MaxMRSize, NodeGUID: 0x041234fffe56789a, MaxQP: 101, MaxCQ: 102, MaxMR: 103, MaxPD: 104,
		MaxQPEntries: 2048, MaxCQEntries: 1 << 17, MaxSGE: 16, MaxInline: 224, MaxReadAtomic: 32, PathMTU: abi.MTU4096,
	}
	if q != want {
		t.Errorf("%+v, want %+v", q, want)
	}
	for _, c := range []struct {
		op     abi.AdminOp
		params marshaler
		want   abi.Status
	}{
		{abi.AdminOp(999), nil, abi.StatusUnknownCommand},
		{abi.AdminOpCMListen, &abi.CMListen{Service: 5}, abi.StatusOK},
		{abi.AdminOpCMListen, &abi.CMListen{Service: 5}, abi.StatusAddressInUse},
		{abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 6}, abi.StatusNotFound},
		{abi.AdminOpCMConnect, &abi.CMConnect{QPN: 77, DGID: d.fn.GID()}, abi.StatusNotFound},
		{abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, DGID: [16]byte{1}}, abi.StatusUnreachable},
		{abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, PrivLen: 65}, abi.StatusTooLarge},
		{abi.AdminOpCMAccept, &abi.CMAccept{CMID: 1, QPN: d.qpn}, abi.StatusNotFound},
		{abi.AdminOpCMReject, &abi.CMReject{CMID: 1}, abi.StatusNotFound},
		{abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: 1}, abi.StatusNotFound},
		{abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: d.pdn}, abi.StatusBusy},
		{abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: d.cqn}, abi.StatusBusy},
		{abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn}, abi.StatusOK},
		{abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn}, abi.StatusNotFound},
		{abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: d.cqn}, abi.StatusOK},
		{abi.AdminOpDeregMR, &abi.DeregMR{LKey: d.lkey}, abi.StatusOK},
		{abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: d.pdn}, abi.StatusOK},
	} {
		if st, _ := d.command(c.op, c.params); st != c.want {
			t.Errorf("%s %+v: %s, want %s", c.op, c.params, st, c.want)
		}
	}
}

// TestRegistersRefuseWrongAccesses reads every register and tries accesses that are not allowed. (DEV-306)
func TestRegistersRefuseWrongAccesses(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	for _, r := range abi.Registers {
		_, st := d.fn.Registers().Read(r.Offset, r.Width)
		if want := abi.StatusOK; r.Readable != (st == want) {
			t.Errorf("read of %s: %s", r.Name, st)
		}
		if _, st := d.fn.Registers().Read(r.Offset, 12-r.Width); st != abi.StatusInvalidArgument {
			t.Errorf("read of %s with the wrong width: %s", r.Name, st)
		}
		if !r.Writable {
			if st := d.fn.Registers().Write(v.now, r.Offset, r.Width, 0); st != abi.StatusDenied {
				t.Errorf("write of %s: %s", r.Name, st)
			}
		}
	}
	for _, c := range []struct {
		offset, width uint32
		value         uint64
		want          abi.Status
	}{
		{0x2, 4, 0, abi.StatusNotFound},
		{abi.RegAdminSQ, 8, 1, abi.StatusInvalidArgument},
		{abi.RegAdminEntries, 4, 3, abi.StatusInvalidArgument},
		{abi.RegAdminEntries, 4, 512, abi.StatusInvalidArgument},
		{abi.RegAdminEntries, 4, 1<<32 | 16, abi.StatusInvalidArgument},
		{abi.RegControl, 4, uint64(abi.ControlEnable), abi.StatusInvalidArgument}, // no queues yet
		{abi.RegControl, 4, 77, abi.StatusInvalidArgument},
		{abi.RegControl, 4, uint64(abi.ControlReset), abi.StatusOK},
	} {
		if st := d.fn.Registers().Write(v.now, c.offset, c.width, c.value); st != c.want {
			t.Errorf("write of %#x to %#x: %s, want %s", c.value, c.offset, st, c.want)
		}
	}
	d.enable()
	if st := d.fn.Registers().Write(v.now, abi.RegAdminSQ, 8, 0); st != abi.StatusBadState {
		t.Errorf("admin queue moved while running: %s", st)
	}
	if got := d.fn.Registers().Value(abi.RegMAC); got != 0x01_00_01_4e_56_02 {
		t.Errorf("MAC register %#x", got)
	}
	if got := d.fn.Registers().Value(abi.RegFunction); pfvf.ID(got).String() != "h1.pf0.vf1" {
		t.Errorf("function register %#x", got)
	}
	if hi, lo := d.fn.Registers().Value(abi.RegGIDHi), d.fn.Registers().Value(abi.RegGIDLo); hi != 0 || lo != 0xffff_c0a8_640b {
		t.Errorf("GID registers %#x %#x", hi, lo)
	}
}

// TestConnectionsToALostPeerAreFreed cuts the wire: the transport gives up, both drivers are told, and the connections'
// resources are freed.
func TestConnectionsToALostPeerAreFreed(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 5000)
	for _, l := range v.links {
		l.Set(sim.Impairment{Down: true})
	}
	a.send(abi.OpWrite, 0, 1000, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
		t.Errorf("WRITE over a dead wire: %s, want %s", cqe.Status, abi.WCRetryExcErr)
	}
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	v.idle(10e9) // CIDs rest before they are free
	for i, s := range v.all() {
		if n := v.core(s).Manager.CIDsInUse(); n != 0 {
			t.Errorf("shard %d: %d connection identifiers in use", i, n)
		}
		if n := s.falcon.engine.Stats().Conns; n != 0 {
			t.Errorf("shard %d: %d transport connections", i, n)
		}
	}
}

// TestDetachMidOperation checks that a guest that leaves in the middle of its work leaves nothing
// behind, and that its function is free for the next.
func TestDetachMidOperation(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 1<<20, b, 0)
	a.send(abi.OpRead, 0, 1<<20, b, 0)
	v.idle(200_000)
	_ = a.ch.Close(nil)
	a.b.Memory.SetRegions(nil)
	clear(a.mem)
	b.event(abi.EventDisconnected)
	v.idle(10e9)
	for i, s := range v.all() {
		st := s.falcon.engine.Stats()
		if n := v.core(s).Manager.CIDsInUse(); n != 0 || st.Conns != 0 || st.TxContexts != 0 || st.RxContexts != 0 {
			t.Errorf("shard %d: %d CIDs, %+v", i, n, st)
		}
		for f := range s.funcs.members.all() {
			if use := f.Credits.InUse(); use != (credit.Cost{}) {
				t.Errorf("%s holds credits %v", f.ID, use)
			}
		}
	}
	a = newDriver(v, 0, 1)
	a.setUp()
	b.createQPAgain()
	a.connectTo(b, 7)
	exchange(t, a, b, 5000)
}
